"""Diagonal systems whose rule never changes on a CPU, one a channel: their answer to a text in one pass over the steps.

`lavagna::response` returns answers and last states, then, for its backward pass, the states in front of each segment of
steps. All sums are float64: what a constant angle is rounded by in float32 grows with every step.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lavagna.derivatives import apart, gradients_again
from lavagna.kernels.cpu.operands import (
    ELEMENTS,
    NOTHING,
    OPERATORS,
    Block,
    arrived,
    dense,
    differentiable,
    each_flat,
    operand,
    pieces,
    pointer,
    threads,
    wide_of,
)
from lavagna.kernels.cpu.planned import New, Operator, run
from lavagna.kernels.cpu.stepwise import stepwise

# Steps of a segment, whose states stay in the nearest cache on the way back; channels of a task, as in the kernel.
SEGMENT, WIDE = 64, 16

OPERATORS.define(
    "response(Tensor u, Tensor a, Tensor b, Tensor c, Tensor state, Tensor? mask, Tensor? offsets, bool keep) "
    "-> (Tensor y, Tensor last, Tensor kept)"
)
OPERATORS.define(
    "response_backward(Tensor d_y, Tensor d_last, Tensor u, Tensor a, Tensor b, Tensor c, Tensor? mask, "
    "Tensor? offsets, Tensor kept) -> (Tensor u, Tensor a, Tensor b, Tensor c, Tensor state)"
)


class _Sizes(NamedTuple):
    """What a call's block begins with."""

    rows: int
    steps: int
    channels: int
    modes: int
    segment: int
    threads: int

    @classmethod
    def of(cls, u: Tensor, a: Tensor, offsets: Tensor | None) -> "_Sizes":
        batch, steps, channels = u.shape
        rows, modes = batch if offsets is None else len(offsets) - 1, a.shape[1]
        count = threads(batch * steps * channels * modes)
        return cls(rows, steps, channels, modes, max(1, min(SEGMENT, steps)), count)


def _block(
    u: Tensor,
    d_y: Tensor | None,
    system: Sequence[Tensor],
    mask: Tensor | None,
    offsets: Tensor | None,
    pointers: Sequence[Tensor | None],
) -> Block:
    """A call as the kernel reads it; u and the gradient of answers dense."""
    a = system[0]
    return (
        *_Sizes.of(u, a, offsets),
        ELEMENTS[a.dtype][1],
        ELEMENTS[wide_of(u)][0],
        *(pointer(x) for x in (offsets, mask)),
        *operand(u),
        *(NOTHING if d_y is None else operand(d_y)),
        *(pointer(x) for x in (*system, *pointers)),
    )


def _settled(u, a, b, c, state, mask, offsets, keep):
    return dense(u), *each_flat(a, b, c, state, mask, offsets), keep


def _room(u, a, b, c, state, mask, offsets, keep):
    sizes = _Sizes.of(u, a, offsets)
    count = pieces(sizes.steps, sizes.segment, sizes.rows, packed=offsets is not None)
    kept = (count, -(-sizes.channels // WIDE), WIDE, sizes.modes)
    y = New(u.shape, wide_of(u), mask is not None)
    return y, New(state.shape, a.dtype), New(kept, a.dtype) if keep else None


def _forward(made, u, a, b, c, state, mask, offsets, keep) -> Block:
    y, last, kept = made
    return _block(u, None, (a, b, c), mask, offsets, (state, last, y, kept, *(None,) * 6))


def _settled_back(d_y, d_last, u, a, b, c, mask, offsets, kept):
    d_last, *system = each_flat(d_last, a, b, c)
    return dense(d_y), d_last, dense(u), *system, *each_flat(mask, offsets), kept


def _room_back(d_y, d_last, u, a, b, c, mask, offsets, kept):
    """Those of a, b and c for each row."""
    rows = d_last.shape[0]
    d_u = New(u.shape, wide_of(u), mask is not None)
    return d_u, *(New((rows, *a.shape), a.dtype) for _ in range(3)), New(d_last.shape, a.dtype)


def _backward(made, d_y, d_last, u, a, b, c, mask, offsets, kept) -> Block:
    return _block(u, d_y, (a, b, c), mask, offsets, (None, None, None, kept, d_last, *made))


def _summed(d_u, d_a, d_b, d_c, d_state):
    return d_u, d_a.sum(0), d_b.sum(0), d_c.sum(0), d_state


def _remember(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs[:-1], output[2])


def _differentiate(ctx: Any, d_y: Tensor | None, d_last: Tensor | None, *_: Any) -> tuple:
    """Gradients of every tensor, in its dtype."""
    u, a, b, c, state, mask, offsets, kept = ctx.saved_tensors
    incoming = [*arrived([d_y], torch.float64, u.shape), *arrived([d_last], state.dtype, state.shape)]
    if torch.is_grad_enabled():
        return (*_again((u, a, b, c, state), mask, offsets, incoming), None, None, None)
    d_u, *made = _BACKWARD(*incoming, u, a, b, c, mask, offsets, kept)
    return (d_u.to(u.dtype), *made, None, None, None)


def _again(given: tuple, mask: Tensor | None, offsets: Tensor | None, incoming: list) -> tuple:
    """The same gradients by a loop in torch, so that they have gradients of their own."""
    given = u, a, b, c, state = apart(given)

    def step(given: Any, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        after = a * state[0] + b * given[0].unsqueeze(-1)
        read = (c * after).sum(-1)
        return (read.real if read.is_complex() else read), (after,)

    def compute() -> list[Tensor]:
        y, last = stepwise(step, [u.double()], (state,), mask, offsets)
        return [y, *last]

    return gradients_again(given, compute, incoming)


# A task brings all that it reads of a state before it writes.
_RUN = Operator("response", settle=_settled, room=_room, block=_forward, in_place={1: 4})
_FORWARD = _RUN.operator
_BACKWARD = Operator("response_backward", settle=_settled_back, room=_room_back, block=_backward, results=_summed)
differentiable("response", _differentiate, _remember)


def response(
    u: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    state: Tensor,
    *,
    real: Tensor | None = None,
    offsets: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """`S_t = a S_{t-1} + b u_t`, `y_t = Re sum c S_t`, a system a channel: y (b, t, c) and the last S (n, c, k).

    u (b, t, c) is real; a, b and c (c, k) and the state are float64 or complex128, all alike. y is float32 at least.
    """
    y, last, _ = run(_RUN, (u, a, b, c, state), real, offsets)
    return y, last
