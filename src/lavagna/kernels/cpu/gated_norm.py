"""The norm by the root of the mean square on a CPU, with weights and a SiLU gate in front of it or behind, in one pass.

`lavagna::gated_norm` norms the last axis; with weights (g * n) the axis is one of n numbers, and every g rows in order
have the g rows of weights. `gated` is 0 without a gate, 1 where it stands behind the norm, 2 where it stands in front.
"""

import struct
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.derivatives import apart, gradients_again
from lavagna.kernels.cpu.operands import (
    ELEMENTS,
    OPERATORS,
    Block,
    differentiable,
    each_flat,
    flat,
    pointer,
    threads,
    wide_of,
    written,
)
from lavagna.kernels.cpu.planned import New, Operator

# Rows of a task: by the shape alone, since the gradient of weights is summed in each of them.
CHUNK = 64

OPERATORS.define("gated_norm(Tensor x, Tensor? gate, Tensor? weight, float eps, int width, int gated) -> Tensor")
OPERATORS.define(
    "gated_norm_backward(Tensor d_y, Tensor x, Tensor? gate, Tensor? weight, float eps, int width, int gated, "
    "bool[] wanted) -> (Tensor x, Tensor gate, Tensor weight)"
)


def _known(x: Tensor) -> Tensor:
    """A tensor without gaps, in a dtype that the kernel knows."""
    return flat(x, x.dtype if x.dtype in ELEMENTS else torch.float32)


def _settled(x, gate, weight, *options):
    """Tensors as the kernel reads them: x in the dtype of y."""
    wide = wide_of(x, gate, weight)
    x, gate = (None if part is None else _known(part.to(written(part.dtype, wide))) for part in (x, gate))
    return x, gate, *each_flat(weight, dtype=wide), *options


def _room(x, gate, weight, eps, width, gated):
    return (New(x.shape, written(x.dtype, wide_of(x, gate, weight))),)


def _block(x, gate, weight, eps, width, gated, pointers: tuple[Tensor | None, ...]) -> Block | None:
    """A call as the kernel reads it, of tensors as it reads them."""
    if not x.numel():
        return None
    wide, rows = wide_of(x, gate, weight), x.numel() // width
    groups = 1 if weight is None else weight.numel() // width
    return (
        *(rows, width, groups, _chunk(groups), threads(x.numel())),
        *(ELEMENTS[wide][0], ELEMENTS[x.dtype][0], 0 if gate is None else ELEMENTS[gate.dtype][0], gated),
        *struct.unpack("q", struct.pack("d", eps)),
        *(pointer(part) for part in (x, gate, weight, *pointers)),
    )


def _chunk(groups):
    return -(-CHUNK // groups) * groups


def _forward(made, x, gate, weight, eps, width, gated):
    return _block(x, gate, weight, eps, width, gated, (*made, None, None, None, None))


def _settled_back(d_y, x, gate, weight, *options):
    incoming = flat(d_y, written(x.dtype, wide_of(x, gate, weight)))
    return incoming, *_settled(x, gate, weight, *options)


def _room_back(d_y, x, gate, weight, eps, width, gated, wanted):
    wide = wide_of(x, gate, weight)
    groups = 1 if weight is None else weight.numel() // width
    chunks = -(-(x.numel() // width) // _chunk(groups))
    return (
        New(x.shape, written(x.dtype, wide)) if wanted[0] else None,
        New(gate.shape, written(gate.dtype, wide)) if gate is not None and wanted[1] else None,
        New((chunks, weight.numel()), wide) if weight is not None and wanted[2] else None,
    )


def _backward(made, d_y, x, gate, weight, eps, width, gated, wanted):
    return _block(x, gate, weight, eps, width, gated, (None, d_y, *made))


def _summed(d_x, d_gate, d_weight):
    return d_x, d_gate, None if d_weight is None else d_weight.sum(0)


def _remember(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.eps, ctx.width, ctx.gated = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx: Any, d_y: Tensor) -> tuple:
    """The wanted gradients, each in the dtype of what it is of."""
    given = x, gate, weight = ctx.saved_tensors
    if torch.is_grad_enabled():
        given = x, gate, weight = apart(given)

        def compute() -> tuple[Tensor]:
            return (normed(x, gate, weight, ctx.eps, ctx.width, ctx.gated),)

        return (*gradients_again(given, compute, (d_y,)), None, None, None)
    wanted = list(ctx.needs_input_grad[:3])
    made = _BACKWARD(d_y, x, gate, weight, ctx.eps, ctx.width, ctx.gated, wanted)
    grads = (
        d.to(part.dtype).reshape(part.shape) if part is not None and want else None
        for part, d, want in zip(given, made, wanted, strict=True)
    )
    return (*grads, None, None, None)


def normed(x: Tensor, gate: Tensor | None, weight: Tensor | None, eps: float, width: int, gated: int) -> Tensor:
    """What the operator returns, by torch."""
    wide = wide_of(x, gate, weight)
    bent = None if gate is None else F.silu(gate.to(wide))
    y = x.to(wide) if bent is None or gated == 1 else x.to(wide) * bent
    rows = y.reshape(-1, 1 if weight is None else weight.numel() // width, width)
    mean = rows.square().mean(-1, keepdim=True)
    rows = rows * torch.rsqrt(mean + eps if eps else torch.where(mean > 0, mean, 1))
    y = (rows if weight is None else rows * weight.reshape(-1, width)).reshape(x.shape)
    return y * bent if bent is not None and gated == 1 else y


_RUN = Operator("gated_norm", settle=_settled, room=_room, block=_forward, results=lambda y: y)
_FORWARD = _RUN.operator
_BACKWARD = Operator("gated_norm_backward", settle=_settled_back, room=_room_back, block=_backward, results=_summed)
differentiable("gated_norm", _differentiate, _remember)


def gated_norm(
    x: Tensor, gate: Tensor | None, weight: Tensor | None, *, eps: float, width: int, before: bool = False
) -> Tensor:
    """`norm(x) * silu(gate)`, with `before` `norm(x * silu(gate))`, in the dtype of x; a norm each `width` numbers."""
    y = _RUN(x, gate, weight, eps, width, 0 if gate is None else 2 if before else 1)
    return y.to(x.dtype)
