"""The compiled recurrence of narrow memories and many heads as operators of torch: a vector holds neighboring heads.

`lavagna::narrow_recurrence` takes the parts of a transition that erases nothing, or `beta` along the key that is
written, as they come and returns what `recur` does, then, for its backward pass, the state in front of each segment of
steps. The backward operator computes the gradients that are `wanted`, of q, k, v, log_decay, step, beta and state, and
sums over what all heads share.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lavagna.algebra.transition import Transition
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
    state: Tensor,
    mask: Tensor | None,
    offsets: Tensor | None,
    before: bool,
    element: int,
    *rest: int,
) -> list[int]:
    """A call as the kernel reads it; `operands` dense: q, k, v, log_decay, step, beta and the gradient of reads."""
    q, k, v, log_decay, *_ = operands
    assert q is not None and k is not None and v is not None
    wide, is_complex = ELEMENTS[state.dtype]
    block = [*sizes, wide, is_complex, element, int(before), int(_shared(q, k, v)), int(_constant(log_decay))]
    block += [pointer(offsets), pointer(mask)]
    for x in operands:
        block += NOTHING if x is None else operand(x, sizes.heads)
    return [*block, *rest]


def _forward_block(operands, state, mask, offsets, before, made) -> list[int]:
    output, last, kept = made
    _, k, v, log_decay, *_ = operands
    sizes = Sizes.of(k, v, log_decay, offsets, state.dtype, back=False)
    rest = (pointer(state), pointer(last), pointer(output), pointer(kept), *(0,) * 8)
    element = ELEMENTS[output.dtype][0]
    return _block(sizes, (*operands, None), state, mask, offsets, before, element, *rest)


def _forward(q, k, v, log_decay, step, beta, state, mask, offsets, before, keep):
    operands = tuple(None if x is None else dense(x) for x in (q, k, v, log_decay, step, beta))
    state, mask = flat(state), None if mask is None else mask.contiguous()
    made = in_large_pages(_room(q, k, v, log_decay, step, beta, state, mask, offsets, before, keep))
    call("narrow", _forward_block(operands, state, mask, offsets, before, made))
    return made


def _room(q, k, v, log_decay, step, beta, state, mask, offsets, before, keep):
    """Room for what the operator returns; zeros where a masked step writes nothing."""
    wide = state.dtype
    sizes = Sizes.of(k, v, log_decay, offsets, wide, back=False)
    output = (torch.empty if mask is None else torch.zeros)(v.shape, dtype=written(v.dtype, wide))
    kept = torch.empty(sizes.kept(offsets is not None), dtype=wide) if keep else None
    return output, torch.empty(state.shape, dtype=wide), kept


def _backward(d_output, d_last, q, k, v, log_decay, step, beta, mask, offsets, kept, before, wanted):
    operands = tuple(None if x is None else dense(x) for x in (q, k, v, log_decay, step, beta, d_output))
    d_last, mask = flat(d_last), None if mask is None else mask.contiguous()
    made = in_large_pages(
        _room_back(d_output, d_last, q, k, v, log_decay, step, beta, mask, offsets, kept, before, wanted)
    )
    sizes = Sizes.of(k, v, log_decay, offsets, d_last.dtype, back=True)
    rest = (0, 0, 0, pointer(kept), pointer(d_last), *(pointer(x) for x in made))
    call("narrow_backward", _block(sizes, operands, d_last, mask, offsets, before, 0, *rest))
    # Those of shared keys came once for each share of the heads.
    return tuple(x.sum(0) if x.ndim == 5 else x for x in made)


def _room_back(d_output, d_last, q, k, v, log_decay, step, beta, mask, offsets, kept, before, wanted):
    wide = d_last.dtype
    sizes = Sizes.of(k, v, log_decay, offsets, wide, back=True)
    room = torch.empty if mask is None else torch.zeros
    keys = (*v.shape[:3], sizes.keys)
    if _shared(q, k, v):
        keys = (sizes.shares(wide), *v.shape[:2], 1, sizes.keys)
    log_decays = (*v.shape[:3], sizes.decays)
    if _constant(log_decay):
        log_decays = (sizes.rows, 1, sizes.heads, sizes.decays)
    shapes = (keys, keys, v.shape, log_decays, *((*v.shape[:3], 1),) * 2, d_last.shape)
    return tuple(room(shape if want else (0,), dtype=wide) for shape, want in zip(shapes, wanted, strict=True))


def _shapes_back(*given):
    return tuple(x[0] if x.ndim == 5 else x for x in _room_back(*given))


FORWARD = register("narrow_recurrence", _forward, _room)
RUN = direct(FORWARD, _forward)
BACKWARD = register("narrow_recurrence_backward", _backward, _shapes_back)


@prepares(FORWARD, in_place={1: 6})
def _prepared(made: tuple[Tensor, ...], *arguments: Any) -> Call | None:
    *operands, state, mask, offsets, before, keep = arguments
    if not as_they_lie(operands, (state,), state.dtype, mask, offsets, keep):
        return None
    return Call("lavagna_narrow", packed(_forward_block(tuple(operands), state, mask, offsets, before, made)))
