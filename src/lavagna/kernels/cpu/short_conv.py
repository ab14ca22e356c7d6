"""A short causal convolution on a CPU with its window, masked or packed, with SiLU behind it where asked for.

`lavagna::short_conv` returns the convolved steps and the window after each sequence; its backward operator computes the
sums before SiLU again.
"""

from typing import Any

import torch
import torch.nn.functional as F
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
    flat,
    operand,
    pointer,
    threads,
    wide_of,
    written,
)
from lavagna.kernels.cpu.planned import New, Operator, borders
from lavagna.packing import masked_rows, packed_rows

# Channels of a task: on the way back their weights, gradients and the filter's steps stay in the nearest cache.
FORTH, BACK, WHOLE = 2048, 512, 16

OPERATORS.define(
    "short_conv(Tensor x, Tensor weight, Tensor? bias, Tensor window, Tensor? mask, Tensor? offsets, bool silu) "
    "-> (Tensor y, Tensor last)"
)
OPERATORS.define(
    "short_conv_backward(Tensor d_y, Tensor d_last, Tensor x, Tensor weight, Tensor? bias, Tensor window, "
    "Tensor? mask, Tensor? offsets, bool silu, bool[] wanted) "
    "-> (Tensor x, Tensor weight, Tensor bias, Tensor window)"
)


def _sizes(x: Tensor, weight: Tensor, offsets: Tensor | None, *, back: bool) -> tuple[int, ...]:
    batch, steps, channels = x.shape
    workers = threads(batch * steps * channels)
    share = min(BACK if back else FORTH, -(-channels // workers))
    rows = batch if offsets is None else len(offsets) - 1
    return rows, steps, channels, weight.shape[1], max(-(-share // WHOLE), 1) * WHOLE, workers


def _settled(x, weight, bias, window, mask, offsets, silu):
    weight, bias = each_flat(weight, bias, dtype=wide_of(x, weight, bias, window))
    return dense(x), weight, bias, dense(window), *each_flat(mask, offsets), silu


def _room(x, weight, bias, window, mask, offsets, silu):
    wide, kept = wide_of(x, weight, bias, window), torch.promote_types(window.dtype, x.dtype)
    return New(x.shape, written(x.dtype, wide), mask is not None), New(window.shape, written(kept, wide))


def _forward(made, x, weight, bias, window, mask, offsets, silu) -> Block:
    y, last = made
    return (
        *_sizes(x, weight, offsets, back=False),
        *(ELEMENTS[part.dtype][0] for part in (weight, y, last)),
        *(int(silu), 1, pointer(offsets), pointer(mask)),
        *operand(x),
        *operand(window),
        *NOTHING,
        *(pointer(part) for part in (weight, bias, y, last)),
        *(0,) * 5,
    )


def _settled_back(d_y, d_last, x, weight, bias, window, mask, offsets, silu, wanted):
    wide = wide_of(x, weight, bias, window)
    weight, bias = each_flat(weight, bias, dtype=wide)
    incoming = dense(d_y), flat(d_last, wide)
    return *incoming, dense(x), weight, bias, dense(window), *each_flat(mask, offsets), silu, wanted


def _room_back(d_y, d_last, x, weight, bias, window, mask, offsets, silu, wanted):
    """Those of weight and bias for each sequence."""
    wide, rows = wide_of(x, weight, bias, window), window.shape[0]
    return (
        New(x.shape, wide, mask is not None) if wanted[0] else None,
        New((rows, *weight.shape), wide),
        New((rows, 0 if bias is None else weight.shape[0]), wide),
        New(window.shape, wide) if wanted[3] else None,
    )


def _backward(made, d_y, d_last, x, weight, bias, window, mask, offsets, silu, wanted) -> Block:
    return (
        *_sizes(x, weight, offsets, back=True),
        *(ELEMENTS[weight.dtype][0], 0, 0, int(silu), 1, pointer(offsets), pointer(mask)),
        *(number for part in (x, window, d_y) for number in operand(part)),
        *(pointer(part) for part in (weight, bias, None, None, d_last, *made)),
    )


def _summed(d_x, d_weight, d_bias, d_window):
    return d_x, d_weight.sum(0), d_bias.sum(0), d_window


def _remember(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, *incoming: Tensor | None) -> tuple:
    """The wanted gradients, each in the dtype of what it is of."""
    x, weight, bias, window, mask, offsets = ctx.saved_tensors
    given = (x, weight, bias, window)
    arriving = arrived(incoming, wide_of(*given), x.shape, window.shape)
    if torch.is_grad_enabled():
        given = x, weight, bias, window = apart(given)

        def compute() -> tuple[Tensor, Tensor]:
            return convolved(x, weight, bias, window, mask, offsets, silu=ctx.silu)

        return (*gradients_again(given, compute, arriving), None, None, None)
    wanted = list(ctx.needs_input_grad[:4])
    made = _BACKWARD(*arriving, x, weight, bias, window, mask, offsets, ctx.silu, wanted)
    grads = (
        d.to(part.dtype) if part is not None and want else None
        for part, d, want in zip(given, made, wanted, strict=True)
    )
    return (*grads, None, None, None)


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Tensor,
    mask: Tensor | None,
    offsets: Tensor | None,
    *,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """What the operator returns, by torch."""
    rows = None if mask is None else masked_rows(mask)
    if offsets is not None:
        rows = packed_rows(offsets.tolist(), mask)
    steps = x if rows is None else rows.gather(x)
    wide, length, width = wide_of(x, weight, bias, window), steps.shape[1], weight.shape[1]
    past = torch.cat([window.to(wide), steps.to(wide)], 1)
    y = sum((past[:, i : i + length] * weight[:, i] for i in range(width)), start=past.new_zeros(()))
    y = y if bias is None else y + bias
    y = F.silu(y) if silu else y
    counts = torch.full((len(steps),), length) if rows is None else rows.counts
    last = (counts[:, None] + torch.arange(width - 1))[..., None].expand(-1, -1, x.shape[2])
    return y if rows is None else rows.scatter(y), past.gather(1, last)


_RUN = Operator("short_conv", settle=_settled, room=_room, block=_forward, in_place={1: 3})
_FORWARD = _RUN.operator
_BACKWARD = Operator("short_conv_backward", settle=_settled_back, room=_room_back, block=_backward, results=_summed)
differentiable("short_conv", _differentiate, _remember)


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Tensor,
    *,
    silu: bool,
    real: Tensor | None = None,
    offsets: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """The convolved steps (b, t, c), in the dtype of x, and the windows after them, in that of x or wider."""
    y, last = _RUN(x, weight, bias, window, real, borders(offsets), silu)
    return y.to(x.dtype), last.to(torch.promote_types(window.dtype, x.dtype))
