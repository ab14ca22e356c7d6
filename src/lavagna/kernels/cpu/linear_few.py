"""Linear maps of few rows on a CPU, as generation needs them: each weight is read once, at the speed of memory.

torch's own product of a matrix and one row runs on one thread in float32 and stays far below that speed.
"""

from typing import Any

import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from lavagna.kernels.cpu.operands import (
    ELEMENTS,
    LIBRARY,
    OPERATORS,
    Block,
    differentiable,
    each_flat,
    flat,
    packed,
    pointer,
    register,
)
from lavagna.kernels.cpu.planned import New, Operator
from lavagna.kernels.cpu.prepared import Call, prepares

# Dtypes of x and bias; bytes of a weight.
KINDS = (torch.float32, torch.bfloat16)
WEIGHTS = {torch.float32: 4, torch.bfloat16: 2, torch.int8: 1}
# Bytes of weights from which on a second thread costs less than it saves.
WORTH = 1 << 17
# Rows up to which reading the weights costs more than the products; beyond, torch's blocked product is faster.
FEW = 4

OPERATORS.define("linear_few(Tensor x, Tensor weight, Tensor? bias=None, Tensor? scale=None) -> Tensor")
OPERATORS.define(
    "linear_few.out(Tensor x, Tensor weight, Tensor? bias=None, Tensor? scale=None, *, Tensor(a!) out) -> Tensor(a!)"
)


def _settled(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None):
    rows = weight.ndim == 2 and not weight.is_neg() and (weight.stride(1) == 1 or weight.shape[1] <= 1)
    return flat(x), weight if rows else flat(weight), *each_flat(bias, scale)


def _into(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None, *, out: Tensor) -> Tensor:
    y = _RUN(x, weight, bias, scale)
    if out.shape != y.shape or out.dtype != y.dtype:
        raise ValueError(
            f"linear_few: out must be {y.dtype} {tuple(y.shape)}, but came as {out.dtype} {tuple(out.shape)}."
        )
    return out.copy_(y)


def _block(made: tuple[Tensor, ...], x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor | None) -> Block:
    (out,), (rows, columns) = made, weight.shape
    threads = torch.get_num_threads() if weight.numel() * weight.element_size() >= WORTH else 1
    return (
        *(out.numel() // rows if rows else 0, columns, rows, weight.stride(0), WEIGHTS[weight.dtype], threads),
        *(ELEMENTS[part.dtype][0] for part in (x, x if bias is None else bias)),
        *(pointer(part) for part in (x, weight, bias, scale, out)),
    )


def _room(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> tuple[New]:
    """Raises ValueError on what the operator can't take."""
    named = {"x": x, "weight": weight, "bias": bias, "scale": scale}
    came = ", ".join(f"{name} {part.dtype} {tuple(part.shape)}" for name, part in named.items() if part is not None)
    if x.ndim < 1 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ValueError(f"linear_few: x must be (..., k) and weight (n, k), but came as {came}.")
    if x.dtype not in KINDS or weight.dtype not in WEIGHTS or (bias is not None and bias.dtype not in KINDS):
        raise ValueError(
            f"linear_few: x and bias must be float32 or bfloat16, weight one of these or int8, but came as {came}. "
            "Use torch.nn.functional.linear."
        )
    if (scale is None) == (weight.dtype == torch.int8) or (scale is not None and scale.dtype != torch.float32):
        raise ValueError(f"linear_few: int8 weights, and no others, have float32 scales (n,), but came as {came}.")
    if any(part is not None and part.shape != weight.shape[:1] for part in (bias, scale)):
        raise ValueError(f"linear_few: bias and scale must be (n,), but came as {came}.")
    return (New((*x.shape[:-1], weight.shape[0]), x.dtype),)


def _shape_into(x: Tensor, weight: Tensor, bias: Tensor | None = None, scale: Tensor | None = None, *, out: Tensor):
    return out


def _remember(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
    """Gradients of x, of weights that have no scales, and of the bias."""
    x, weight, bias, scale = ctx.saved_tensors
    full = weight if scale is None else weight * scale[:, None]
    rows = gradient.flatten(0, -2) if gradient.ndim > 1 else gradient[None]
    d_weight = (
        None if scale is not None else (rows.mT.float() @ x.reshape(len(rows), x.shape[-1]).float()).to(weight.dtype)
    )
    d_bias = None if bias is None else rows.sum(0, dtype=torch.float32).to(bias.dtype)
    return (gradient.float() @ full.float()).to(x.dtype), d_weight, d_bias, None


_RUN = Operator("linear_few", settle=_settled, room=_room, block=_block, results=lambda y: y)
_FORWARD = _RUN.operator
_OUT = register("linear_few.out", _into, _shape_into)
differentiable("linear_few", _differentiate, _remember)


def fits(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether the kernel is there and serves a map of these: on a CPU, of few rows, in dtypes it knows."""
    return (
        LIBRARY.functions is not None
        and all(part is None or part.device.type == "cpu" for part in (x, weight, bias))
        and x.ndim > 0
        and x.numel() <= FEW * x.shape[-1]
        and x.dtype == weight.dtype
        and all(part is None or part.dtype in KINDS for part in (x, weight, bias))
    )


@prepares(torch.ops.aten.linear.default)
def _prepared(made: tuple[Tensor, ...], x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Call | None:
    (out,) = made
    dense = x.is_contiguous() and out.is_contiguous() and weight.stride(1) == 1
    if not dense or not fits(x, weight, bias):
        return None
    return Call("lavagna_linear_few", packed(_block(made, x, weight, bias, None)))


@prepares(torch.ops.aten.mm.default)
def _prepared_mm(made: tuple[Tensor, ...], x: Tensor, weight: Tensor) -> Call | None:
    return _prepared(made, x, weight.T)


@prepares(torch.ops.aten.addmm.default)
def _prepared_addmm(made: tuple[Tensor, ...], bias: Tensor, x: Tensor, weight: Tensor, **factors: Any) -> Call | None:
    return _prepared(made, x, weight.T, bias) if bias.ndim == 1 and not factors else None


def linear_few(
    x: Float[Tensor, "*axes k"],
    weight: Shaped[Tensor, "n k"],
    bias: Float[Tensor, " n"] | None = None,
    scale: Float32[Tensor, " n"] | None = None,
) -> Float[Tensor, "*axes n"]:
    """`x W^T + bias`, with sums in float32 rounded once to the dtype of x; W is diag(scale) weight where scales come.

    x and bias are float32 or bfloat16, weights one of these, or int8 with a float32 scale a row. Legal for any number
    of rows, fast for up to 4: the weights are read once for every 4. The result depends on neither the number of
    threads nor the other rows. Raises ValueError on other dtypes and on shapes that don't fit.
    """
    return _RUN(x, weight, bias, scale)


def quantized(weight: Float[Tensor, "n k"]) -> tuple[Shaped[Tensor, "n k"], Float32[Tensor, " n"]]:
    """Weights as int8 and a scale a row, by which a row's largest is 127; off by half a scale at most, 0 stays 0."""
    scale = weight.abs().amax(1).float() / 127 if weight.shape[1] else weight.new_zeros(len(weight)).float()
    steps = weight.float() / torch.where(scale > 0, scale, 1)[:, None]
    return steps.round().clamp(-127, 127).to(torch.int8), scale
