"""The compiled recurrence of narrow memories and many heads as operators of torch: a vector holds neighboring heads.

`lavagna::narrow_recurrence` takes the parts of a transition that erases nothing, or `beta` along the key that is
written, as they come and returns what `recur` does, then, for its backward pass, the state in front of each segment of
steps. The backward operator computes the gradients that are `wanted`, of q, k, v, log_decay, step, beta and state, and
sums over what all heads share.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lavagna.algebra.transition import Transition
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

# Numbers of a head's memory up to which, and heads from which on, a vector is filled sooner by neighboring heads.
NARROW, FEW = 128, 8
# Heads of a share are a multiple of this: of any level's vectors.
WHOLE = 16
# Bytes of a share's memory: on the way back a segment of them stays in the second cache, with all that belongs to it.
BACK, FORTH = 1 << 13, 1 << 18
# Steps of a segment: many where a memory outweighs what a step brings.
SHORT, LONG = 32, 64

OPERATORS.define(
    "narrow_recurrence(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? step, Tensor? beta, "
    "Tensor state, Tensor? mask, Tensor? offsets, bool before, bool keep) -> (Tensor output, Tensor last, Tensor kept)"
)
OPERATORS.define(
    "narrow_recurrence_backward(Tensor d_output, Tensor d_last, Tensor q, Tensor k, Tensor v, Tensor? log_decay, "
    "Tensor? step, Tensor? beta, Tensor? mask, Tensor? offsets, Tensor kept, bool before, bool[] wanted) "
    "-> (Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor step, Tensor beta, Tensor state)"
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
    share: int
    padded: int
    threads: int

    @classmethod
    def of(
        cls, k: Tensor, v: Tensor, log_decay: Tensor | None, offsets: Tensor | None, wide: torch.dtype, *, back: bool
    ) -> "Sizes":
        """The sizes of a call. On the way back shares are decided by the shape alone: sums over heads are theirs."""
        batch, steps, heads, values = v.shape
        rows, keys = batch if offsets is None else len(offsets) - 1, k.shape[3]
        numbers = keys * values
        segment = max(1, min(LONG if numbers > 4 else SHORT, steps))
        workers = threads(batch * steps * heads * numbers)
        share = (BACK if back else FORTH) // (numbers * wide.itemsize)
        if not back:
            share = min(share, -(-heads // workers) + WHOLE - 1)
        share = max(share // WHOLE, 1) * WHOLE
        lanes = _lanes(wide)
        decays = 0 if log_decay is None else log_decay.shape[3]
        padded = -(-heads // lanes) * lanes
        return cls(rows, steps, heads, keys, values, decays, segment, share, padded, workers)

    def kept(self, apart: bool) -> tuple[int | torch.SymInt, ...]:
        """The shape of the states in front of segments."""
        count = pieces(self.steps, self.segment, self.rows, packed=apart)
        return count, self.padded * self.keys * self.values

    def shares(self, wide: torch.dtype) -> int | torch.SymInt:
        """How many shares of the heads there are; those that fill no vector are one of their own."""
        whole = self.heads // _lanes(wide) * _lanes(wide)
        return -(-whole // self.share) + (self.heads > whole)


def _lanes(wide: torch.dtype) -> int:
    return vector_bytes() // (8 if wide in (torch.float64, torch.complex128) else 4)


def fits(a: Transition, k: Tensor, v: Tensor) -> bool:
    """Whether a call has memories so narrow, and so many of them, that this is the faster kernel."""
    numbers = k.shape[3] * v.shape[3]
    erases = a.right is not None and (a.right is not k or a.beta is None)
    return not erases and 0 < numbers <= NARROW and v.shape[2] >= FEW


def _shared(q: Tensor, k: Tensor, v: Tensor) -> bool | torch.SymBool:
    return q.shape[2] == k.shape[2] == 1 and v.shape[2] > 1


def _constant(log_decay: Tensor | None) -> bool | torch.SymBool:
    return log_decay is not None and log_decay.shape[1] == 1


def _block(
    sizes: Sizes,
    operands: Sequence[Tensor | None],
    wide: torch.dtype,
    mask: Tensor | None,
    offsets: Tensor | None,
    before: bool,
    element: int,
    pointers: Sequence[Tensor | None],
) -> Block:
    """A call as the kernel reads it; `operands` dense: q, k, v, log_decay, step, beta and the gradient of reads."""
    q, k, v, log_decay, *_ = operands
    assert q is not None and k is not None and v is not None
    block: list[int | Tensor] = [*sizes, *ELEMENTS[wide], element, int(before)]
    block += [int(_shared(q, k, v)), int(_constant(log_decay)), pointer(offsets), pointer(mask)]
    for x in operands:
        block += NOTHING if x is None else operand(x, sizes.heads)
    return [*block, *(pointer(x) for x in pointers)]


def _settled(q, k, v, log_decay, step, beta, state, mask, offsets, *options):
    operands = each_dense(q, k, v, log_decay, step, beta)
    return (*operands, *each_flat(state, mask, offsets), *options)


def _room(q, k, v, log_decay, step, beta, state, mask, offsets, before, keep):
    wide, masked = state.dtype, mask is not None
    kept = Sizes.of(k, v, log_decay, offsets, wide, back=False).kept(offsets is not None) if keep else None
    output = New(v.shape, written(v.dtype, wide), masked)
    return output, New(state.shape, wide), None if kept is None else New(kept, wide)


def _forward(made, q, k, v, log_decay, step, beta, state, mask, offsets, before, keep):
    output, last, kept = made
    sizes = Sizes.of(k, v, log_decay, offsets, state.dtype, back=False)
    operands, element = (q, k, v, log_decay, step, beta, None), ELEMENTS[output.dtype][0]
    pointers = (state, last, output, kept, *(None,) * 8)
    return _block(sizes, operands, state.dtype, mask, offsets, before, element, pointers)


def _settled_back(d_output, d_last, q, k, v, log_decay, step, beta, mask, offsets, *rest):
    operands = each_dense(q, k, v, log_decay, step, beta)
    return (dense(d_output), flat(d_last), *operands, *each_flat(mask, offsets), *rest)


def _room_back(d_output, d_last, q, k, v, log_decay, step, beta, mask, offsets, kept, before, wanted):
    wide, masked = d_last.dtype, mask is not None
    sizes = Sizes.of(k, v, log_decay, offsets, wide, back=True)
    keys = (*v.shape[:3], sizes.keys)
    if _shared(q, k, v):
        keys = (sizes.shares(wide), *v.shape[:2], 1, sizes.keys)
    log_decays = (*v.shape[:3], sizes.decays)
    if _constant(log_decay):
        log_decays = (sizes.rows, 1, sizes.heads, sizes.decays)
    shapes = (keys, keys, v.shape, log_decays, *((*v.shape[:3], 1),) * 2, d_last.shape)
    return tuple(New(shape, wide, masked) if want else None for shape, want in zip(shapes, wanted, strict=True))


def _backward(made, d_output, d_last, q, k, v, log_decay, step, beta, mask, offsets, kept, before, wanted):
    sizes = Sizes.of(k, v, log_decay, offsets, d_last.dtype, back=True)
    operands, pointers = (q, k, v, log_decay, step, beta, d_output), (None, None, None, kept, d_last, *made)
    return _block(sizes, operands, d_last.dtype, mask, offsets, before, 0, pointers)


def _summed(*made):
    """Those of shared keys came once for each share of the heads."""
    return tuple(x.sum(0) if x is not None and x.ndim == 5 else x for x in made)


RUN = Operator("narrow_recurrence", settle=_settled, room=_room, block=_forward, in_place={1: 6})
FORWARD = RUN.operator
BACKWARD = Operator(
    "narrow_recurrence_backward", settle=_settled_back, room=_room_back, block=_backward, results=_summed
)
