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
    arrived,
    as_they_lie,
    call,
    dense,
    differentiable,
    direct,
    flat,
    operand,
    packed,
    pieces,
    pointer,
    register,
    threads,
    wide_of,
)
from lavagna.kernels.cpu.prepared import Call, prepares
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
    operands: Sequence[Tensor | None],
    system: Sequence[Tensor],
    mask: Tensor | None,
    offsets: Tensor | None,
    rest: tuple,
) -> tuple[int, ...]:
    """A call as the kernel reads it; `operands` dense: u and the gradient of answers."""
    u, a = operands[0], system[0]
    assert u is not None
    return (
        *_Sizes.of(u, a, offsets),
        ELEMENTS[a.dtype][1],
        ELEMENTS[wide_of(u)][0],
        *(pointer(x) for x in (offsets, mask)),
        *(number for x in operands for number in (NOTHING if x is None else operand(x))),
        *(pointer(x) for x in (*system, *rest)),
    )


def _forward_block(u, system, state, mask, offsets, made) -> tuple[int, ...]:
    return _block((u, None), system, mask, offsets, (state, *made[1:2], made[0], made[2], *(None,) * 6))


def _response(u, a, b, c, state, mask, offsets, keep):
    made = _made(u, a, b, c, state, mask, offsets, keep)
    u, mask = dense(u), None if mask is None else mask.contiguous()
    *system, state = (flat(x) for x in (a, b, c, state))
    call("response", _forward_block(u, system, state, mask, offsets, made))
    return made


def _made(u, a, b, c, state, mask, offsets, keep):
    """Room for what the operator returns; zeros where a masked step writes nothing."""
    sizes = _Sizes.of(u, a, offsets)
    count = pieces(sizes.steps, sizes.segment, sizes.rows, packed=offsets is not None)
    kept = (count, -(-sizes.channels // WIDE), WIDE, sizes.modes)
    y = (torch.empty if mask is None else torch.zeros)(u.shape, dtype=wide_of(u))
    return y, torch.empty(state.shape, dtype=a.dtype), torch.empty(kept, dtype=a.dtype) if keep else None


def _backward(d_y, d_last, u, a, b, c, mask, offsets, kept):
    made = _made_back(d_y, d_last, u, a, b, c, mask, offsets, kept)
    d_u, d_a, d_b, d_c, d_state = made
    operands, mask = [dense(x) for x in (u, d_y)], None if mask is None else mask.contiguous()
    *system, d_last = (flat(x) for x in (a, b, c, d_last))
    call("response_backward", _block(operands, system, mask, offsets, (None, None, None, kept, d_last, *made)))
    return d_u, d_a.sum(0), d_b.sum(0), d_c.sum(0), d_state


def _made_back(d_y, d_last, u, a, b, c, mask, offsets, kept):
    """Room for the gradients, those of a, b and c for each row."""
    rows = d_last.shape[0]
    return (
        (torch.empty if mask is None else torch.zeros)(u.shape, dtype=wide_of(u)),
        *(torch.empty((rows, *a.shape), dtype=a.dtype) for _ in range(3)),
        torch.empty(d_last.shape, dtype=a.dtype),
    )


def _shapes_back(*given):
    d_u, d_a, d_b, d_c, d_state = _made_back(*given)
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


_FORWARD = register("response", _response, _made)
_RUN = direct(_FORWARD, _response)
_BACKWARD = register("response_backward", _backward, _shapes_back)
differentiable("response", _differentiate, _remember)


# A task brings all that it reads of a state before it writes.
@prepares(_FORWARD, in_place={1: 4})
def _prepared(made: tuple[Tensor, ...], *arguments: Any) -> Call | None:
    u, *system, state, mask, offsets, keep = arguments
    if not as_they_lie((u,), (*system, state), state.dtype, mask, offsets, keep):
        return None
    return Call("lavagna_response", packed(_forward_block(u, system, state, None, None, made)))


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
    borders = None if offsets is None else torch.tensor(offsets, dtype=torch.int64)
    tensors = (u, a, b, c, state)
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    y, last, _ = _RUN(*tensors, real, borders, keep)
    return y, last
