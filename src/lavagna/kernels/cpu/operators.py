"""The compiled recurrence as operators of torch, with the shapes that tracing needs.

`lavagna::recurrence` takes the parts of a transition as they come, broadcast axes and all, and returns what `recur`
does, then what its backward pass needs: what each step wrote or found, and the state in front of each segment of steps.
`erase` is beta where `decayed`, else left; without `right` the key itself is erased along.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lavagna.kernels.cpu.operands import (
    ELEMENTS,
    NOTHING,
    OPERATORS,
    Block,
    dense,
    each_dense,
    each_flat,
    flat,
    operand,
    pieces,
    pointer,
    threads,
    vector_bytes,
    written,
)
from lavagna.kernels.cpu.planned import New, Operator

# Steps of a segment at most, and numbers of its rows of keys: what stays in the second cache with a segment's states.
LONGEST, NUMBERS = 64, 8192
# The backward pass divides a head's values where heads are few. By the shape alone: no sum may depend on the threads.
PARTS = 4
# Values of a head that stay together in its parts, as the kernel has them.
BLOCK = 64

OPERATORS.define(
    "recurrence(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? step, Tensor? erase, Tensor? right, "
    "Tensor state, Tensor? mask, Tensor? offsets, bool decayed, bool before, bool keep) "
    "-> (Tensor output, Tensor last, Tensor found, Tensor kept)"
)
OPERATORS.define(
    "recurrence_backward(Tensor d_output, Tensor d_last, Tensor q, Tensor k, Tensor v, Tensor? log_decay, "
    "Tensor? step, Tensor? erase, Tensor? right, Tensor? mask, Tensor? offsets, Tensor found, Tensor kept, "
    "bool decayed, bool before) "
    "-> (Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor erase, Tensor right, Tensor state)"
)


class Sizes(NamedTuple):
    """What a call's block begins with."""

    rows: int
    steps: int
    heads: int
    keys: int
    values: int
    decays: int
    segment: int
    parts: int
    threads: int

    @classmethod
    def of(cls, k: Tensor, v: Tensor, log_decay: Tensor | None, offsets: Tensor | None) -> "Sizes":
        """The sizes of a call, each head whole."""
        batch, steps, heads, values = v.shape
        rows, keys = batch if offsets is None else len(offsets) - 1, k.shape[3]
        segment = max(1, min(LONGEST, max(8, NUMBERS // max(keys, 1)), steps))
        work = batch * steps * heads * values * keys
        decays = 0 if log_decay is None else log_decay.shape[3]
        return cls(rows, steps, heads, keys, values, decays, segment, 1, threads(work))

    def divided(self, tasks: int) -> "Sizes":
        """The same with each head's values in parts, so that there are about as many tasks as wanted."""
        wanted = -(-tasks // max(self.rows * self.heads, 1))
        return self._replace(parts=max(1, min(wanted, -(-self.values // BLOCK))))

    def kept(self, wide: torch.dtype, apart: bool) -> tuple[int | torch.SymInt, ...]:
        """The shape of the states in front of segments, their rows of keys in whole vectors."""
        lanes = vector_bytes() // (8 if wide in (torch.float64, torch.complex128) else 4)
        count = pieces(self.steps, self.segment, self.rows, packed=apart)
        return count, self.heads, self.values, -(-self.keys // lanes) * lanes


def _block(
    sizes: Sizes,
    written: torch.dtype,
    operands: tuple[Tensor | None, ...],
    mask: Tensor | None,
    offsets: Tensor | None,
    decayed: bool,
    before: bool,
) -> Block:
    """What a call's block begins with, by the dtype of the reads that it writes, or of sums; `operands` dense."""
    block: list[int | Tensor] = [*sizes, *ELEMENTS[written], int(before), int(decayed), pointer(offsets), pointer(mask)]
    for x in operands:
        block += NOTHING if x is None else operand(x, sizes.heads)
    return block


def _settled(q, k, v, log_decay, step, erase, right, state, mask, offsets, *options):
    operands = each_dense(q, k, v, log_decay, step, erase, right)
    return (*operands, *each_flat(state, mask, offsets), *options)


def _room(q, k, v, log_decay, step, erase, right, state, mask, offsets, decayed, before, keep):
    wide, masked = state.dtype, mask is not None
    kept = Sizes.of(k, v, log_decay, offsets).kept(wide, offsets is not None) if keep else None
    return (
        New(v.shape, written(v.dtype, wide), masked),
        New(state.shape, wide),
        New(v.shape, wide, masked) if keep and erase is not None else None,
        None if kept is None else New(kept, wide),
    )


def _forward(made, q, k, v, log_decay, step, erase, right, state, mask, offsets, decayed, before, keep):
    output, last, found, kept = made
    sizes = Sizes.of(k, v, log_decay, offsets)
    if sizes.threads > 1:
        sizes = sizes.divided(2 * sizes.threads)
    operands = (q, k, v, log_decay, step, erase, right)
    pointers = (pointer(x) for x in (state, last, output, found, kept))
    return (*_block(sizes, output.dtype, operands, mask, offsets, decayed, before), *pointers, *NOTHING, *(0,) * 8)


def _settled_back(d_output, d_last, q, k, v, log_decay, step, erase, right, mask, offsets, *rest):
    operands = each_dense(q, k, v, log_decay, step, erase, right)
    return (dense(d_output), flat(d_last), *operands, *each_flat(mask, offsets), *rest)


def _room_back(d_output, d_last, q, k, v, log_decay, step, erase, right, mask, offsets, found, kept, decayed, before):
    sizes, wide, masked = Sizes.of(k, v, log_decay, offsets).divided(PARTS), d_last.dtype, mask is not None
    parts = (sizes.parts, *v.shape[:3])
    erased = 1 if decayed else sizes.keys
    return (
        New((*parts, sizes.keys), wide, masked),
        New((*parts, sizes.keys), wide, masked),
        New(v.shape, wide, masked),
        None if log_decay is None else New((*parts, sizes.decays), wide, masked),
        None if erase is None else New((*parts, erased), wide, masked),
        None if right is None else New((*parts, sizes.keys), wide, masked),
        New(d_last.shape, wide),
    )


def _backward(
    made, d_output, d_last, q, k, v, log_decay, step, erase, right, mask, offsets, found, kept, decayed, before
):
    sizes = Sizes.of(k, v, log_decay, offsets).divided(PARTS)
    block = _block(sizes, d_last.dtype, (q, k, v, log_decay, step, erase, right), mask, offsets, decayed, before)
    pointers = (pointer(x) for x in (d_last, *made))
    return (*block, 0, 0, 0, pointer(found), pointer(kept), *operand(d_output, sizes.heads), *pointers)


def _summed(*made):
    """Those of keys came once for each part of the values."""
    return tuple(x if x is None or x.ndim < 5 else x[0] if x.shape[0] == 1 else x.sum(0) for x in made)


RUN = Operator("recurrence", settle=_settled, room=_room, block=_forward, in_place={1: 7})
FORWARD = RUN.operator
BACKWARD = Operator("recurrence_backward", settle=_settled_back, room=_room_back, block=_backward, results=_summed)
