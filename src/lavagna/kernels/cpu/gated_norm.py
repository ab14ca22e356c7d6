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
    call,
    differentiable,
    direct,
    flat,
    packed,
    pointer,
    register,
    threads,
    wide_of,
    written,
)
from lavagna.kernels.cpu.prepared import Call, prepares

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


def _block(x, gate, weight, eps, width, gated, pointers: tuple[int, ...]) -> tuple[int, ...]:
    """A call as the kernel reads it, of tensors as it reads them, x as y is."""
    wide, rows = wide_of(x, gate, weight), x.numel() // width
    groups = 1 if weight is None else weight.numel() // width
    return (
        *(rows, width, groups, _chunk(groups), threads(x.numel())),
        *(ELEMENTS[wide][0], ELEMENTS[x.dtype][0], 0 if gate is None else ELEMENTS[gate.dtype][0], gated),
        *struct.unpack("q", struct.pack("d", eps)),
        *(pointer(part) for part in (x, gate, weight)),
        *pointers,
    )


def _chunk(groups):
    return -(-CHUNK // groups) * groups


def _operands(x, gate, weight):
    """Tensors as the kernel reads them: x in the dtype of y."""
    wide = wide_of(x, gate, weight)
    x = _known(x.to(written(x.dtype, wide)))
    gate = None if gate is None else _known(gate.to(written(gate.dtype, wide)))
    return x, gate, None if weight is None else flat(weight, wide)


def _forward(x, gate, weight, eps, width, gated):
    y = _room(x, gate, weight, eps, width, gated)
    x, gate, weight = _operands(x, gate, weight)
    if x.numel():
        call("gated_norm", _block(x, gate, weight, eps, width, gated, (pointer(y), 0, 0, 0, 0)))
    return y


def _room(x, gate, weight, eps, width, gated):
    return torch.empty(x.shape, dtype=written(x.dtype, wide_of(x, gate, weight)))


def _backward(d_y, x, gate, weight, eps, width, gated, wanted):
    made = _room_back(d_y, x, gate, weight, eps, width, gated, wanted)
    x, gate, weight = _operands(x, gate, weight)
    d_y = flat(d_y, x.dtype)
    if x.numel():
        pointers = (0, pointer(d_y), *(pointer(part) for part in made))
        call("gated_norm_backward", _block(x, gate, weight, eps, width, gated, pointers))
    return made[0], made[1], made[2].sum(0)


def _room_back(d_y, x, gate, weight, eps, width, gated, wanted):
    wide = wide_of(x, gate, weight)
    nothing = torch.empty(0, dtype=wide)
    groups = 1 if weight is None else weight.numel() // width
    chunks = -(-(x.numel() // width) // _chunk(groups))
    return (
        torch.empty(x.shape, dtype=written(x.dtype, wide)) if wanted[0] else nothing,
        torch.empty(gate.shape, dtype=written(gate.dtype, wide)) if gate is not None and wanted[1] else nothing,
        torch.empty((chunks, weight.numel()), dtype=wide) if weight is not None and wanted[2] else nothing[None],
    )


def _shapes_back(*given):
    d_x, d_gate, d_weight = _room_back(*given)
    return d_x, d_gate, d_weight.sum(0)


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


_FORWARD = register("gated_norm", _forward, _room)
_RUN = direct(_FORWARD, _forward)
_BACKWARD = register("gated_norm_backward", _backward, _shapes_back)
differentiable("gated_norm", _differentiate, _remember)


@prepares(_FORWARD)
def _prepared(made: tuple[Tensor, ...], *arguments: Any) -> Call | None:
    *tensors, eps, width, gated = arguments
    ready = all(own is part for own, part in zip(_operands(*tensors), tensors, strict=True))
    if not ready or not tensors[0].numel():
        return None
    x, gate, weight = tensors
    return Call(
        "lavagna_gated_norm", packed(_block(x, gate, weight, eps, width, gated, (pointer(made[0]), 0, 0, 0, 0)))
    )


def gated_norm(
    x: Tensor, gate: Tensor | None, weight: Tensor | None, *, eps: float, width: int, before: bool = False
) -> Tensor:
    """`norm(x) * silu(gate)`, with `before` `norm(x * silu(gate))`, in the dtype of x; a norm each `width` numbers."""
    y = _RUN(x, gate, weight, eps, width, 0 if gate is None else 2 if before else 1)
    return y.to(x.dtype)
