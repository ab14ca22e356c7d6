"""The compiled recurrence as operators of torch, with the shapes that tracing needs.

`lavagna::recurrence` takes the parts of a transition as they come, broadcast axes and all, and returns what `recur`
does, then what its backward pass needs: what each step wrote or found, and the state in front of each segment of steps.
`erase` is beta where `decayed`, else left; without `right` the key itself is erased along.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lavagna.kernels.cpu.operands import (
    ELEMENTS,
    NOTHING,
    OPERATORS,
    as_they_lie,
    call,
    dense,
    direct,
    flat,
    in_large_pages,
    operand,
    packed,
    pieces,
    pointer,
    register,
    threads,
    vector_bytes,
    written,
)
from lavagna.kernels.cpu.prepared import Call, prepares

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
    rest: tuple[int, ...],
) -> list[int]:
    """A call as the kernel reads it, by the dtype of the reads that it writes, or of sums; `operands` dense."""
    block = [*sizes, *ELEMENTS[written], int(before), int(decayed), pointer(offsets), pointer(mask)]
    for x in operands:
        block += NOTHING if x is None else operand(x, sizes.heads)
    block += rest
    return block


def _recurrence(q, k, v, log_decay, step, erase, right, state, mask, offsets, decayed, before, keep):
    operands = tuple(None if x is None else dense(x) for x in (q, k, v, log_decay, step, erase, right))
    state, mask = flat(state), None if mask is None else mask.contiguous()
    made = in_large_pages(_room(k, v, log_decay, erase, state, mask, offsets, keep))
    call("recurrence", _forward_block(operands, state, mask, offsets, decayed, before, made))
    return made


def _forward_block(operands, state, mask, offsets, decayed, before, made) -> list[int]:
    output, last, found, kept = made
    _, k, v, log_decay, *_ = operands
    sizes = Sizes.of(k, v, log_decay, offsets)
    if sizes.threads > 1:
        sizes = sizes.divided(2 * sizes.threads)
    rest = (pointer(state), pointer(last), pointer(output), pointer(found), pointer(kept), *NOTHING, *(0,) * 8)
    return _block(sizes, output.dtype, operands, mask, offsets, decayed, before, rest)


def _room(k, v, log_decay, erase, state, mask, offsets, keep):
    """Room for what the operator returns; zeros where a masked step writes nothing."""
    wide, room = state.dtype, torch.empty_like if mask is None else torch.zeros_like
    output = room(v, dtype=written(v.dtype, wide), memory_format=torch.contiguous_format)
    last, found, kept = torch.empty_like(state, memory_format=torch.contiguous_format), None, None
    if keep:
        kept = torch.empty(Sizes.of(k, v, log_decay, offsets).kept(wide, offsets is not None), dtype=wide)
        found = None if erase is None else room(output, dtype=wide)
    return output, last, found, kept


def _backward(d_output, d_last, q, k, v, log_decay, step, erase, right, mask, offsets, found, kept, decayed, before):
    operands = tuple(None if x is None else dense(x) for x in (q, k, v, log_decay, step, erase, right))
    d_output, d_last = dense(d_output), flat(d_last)
    mask = None if mask is None else mask.contiguous()
    made = in_large_pages(_room_back(k, v, log_decay, erase, right, mask, offsets, d_last, decayed))
    sizes = Sizes.of(k, v, log_decay, offsets).divided(PARTS)
    rest = (0, 0, 0, pointer(found), pointer(kept), *operand(d_output, sizes.heads), d_last.data_ptr())
    rest += tuple(pointer(x) for x in made)
    call("recurrence_backward", _block(sizes, d_last.dtype, operands, mask, offsets, decayed, before, rest))
    # Those of keys came once for each part of the values.
    return tuple(x if x.ndim < 5 else x[0] if x.shape[0] == 1 else x.sum(0) for x in made)


def _room_back(k, v, log_decay, erase, right, mask, offsets, d_last, decayed):
    sizes, wide = Sizes.of(k, v, log_decay, offsets).divided(PARTS), d_last.dtype
    room = torch.empty if mask is None else torch.zeros
    parts, nothing = (sizes.parts, *v.shape[:3]), torch.empty(0, dtype=wide)
    return (
        room((*parts, sizes.keys), dtype=wide),
        room((*parts, sizes.keys), dtype=wide),
        room(v.shape, dtype=wide),
        nothing if log_decay is None else room((*parts, sizes.decays), dtype=wide),
        nothing if erase is None else room((*parts, 1 if decayed else sizes.keys), dtype=wide),
        nothing if right is None else room((*parts, sizes.keys), dtype=wide),
        torch.empty(d_last.shape, dtype=wide),
    )


def _shapes(q, k, v, log_decay, step, erase, right, state, mask, offsets, decayed, before, keep):
    return _room(k, v, log_decay, erase, state, mask, offsets, keep)


def _shapes_back(d_output, d_last, q, k, v, log_decay, step, erase, right, mask, offsets, found, kept, decayed, before):
    made = _room_back(k, v, log_decay, erase, right, mask, offsets, d_last, decayed)
    return tuple(x[0] if x.ndim == 5 else x for x in made)


FORWARD = register("recurrence", _recurrence, _shapes)
RUN = direct(FORWARD, _recurrence)
BACKWARD = register("recurrence_backward", _backward, _shapes_back)


@prepares(FORWARD, in_place={1: 7})
def _prepared(made: tuple[Tensor, ...], *arguments: Any) -> Call | None:
    *operands, state, mask, offsets, decayed, before, keep = arguments
    if not as_they_lie(operands, (state,), state.dtype, mask, offsets, keep):
        return None
    block = _forward_block(tuple(operands), state, mask, offsets, decayed, before, made)
    return Call("lavagna_recurrence", packed(block))
