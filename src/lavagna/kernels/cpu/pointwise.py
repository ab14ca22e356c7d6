"""torch's operators on small tensors as calls of one kernel: number by number, or summed over an axis.

Nothing here is faster than torch on large tensors. A step of generation has hundreds of such operators on a few
hundred numbers each, which take torch longer to be called than to be computed.
"""

import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lavagna.kernels.cpu.prepared import Call, prepares

aten = torch.ops.aten
# In the order of the kernel's own list.
NAMES = """
copy add sub mul div maximum minimum where lerp addcmul glu gt ge lt le eq ne
neg abs relu reciprocal sqrt rsqrt square exp expm1
sigmoid silu tanh gelu gelu_tanh softplus log_sigmoid sin cos log log1p not remainder sum mean norm layer_norm gather
"""
CODES = {name: code for code, name in enumerate(NAMES.split())}
KINDS = {torch.float32: 0, torch.float64: 1, torch.bfloat16: 2, torch.int64: 3, torch.bool: 4}
AXES, TERMS = 4, 6
# What stands for a tensor that is not there.
NOTHING = (0, 0) + (0,) * AXES
# Numbers from which on torch's threads are worth more than its calls cost.
LARGE = 1 << 16


def _call(code: str, *terms: Tensor | None, numbers: Sequence[float] = (), row: bool = False, along: int = 0):
    """A call of one task, or None where a tensor is of a kind that the kernel does not know."""
    task = _task(code, terms, numbers, row, along)
    return None if task is None else Call("lavagna_pointwise", struct.pack("q", 1) + task, terms)


def _task(code: str, terms: Sequence[Tensor | None], numbers: Sequence[float], row: bool, along: int) -> bytes | None:
    """A task as the kernel reads it. All terms have one shape; with `row`, its last axis is taken as a whole."""
    there = [x for x in terms if x is not None]
    shape = max((x.shape for x in there), key=lambda shape: shape.numel())
    if (
        any(x.dtype not in KINDS or x.is_neg() or x.device.type != "cpu" for x in there)
        or not 0 < shape.numel() <= LARGE
    ):
        return None
    terms = [None if x is None else x.expand(shape) for x in terms]
    axes = _axes(shape, [None if x is None else x.stride() for x in terms], row)
    if len(axes) > AXES:
        return None
    sizes, *strides = zip(*([(1, *(0,) * len(terms))] * (AXES - len(axes)) + axes), strict=True)
    # Integers, which float64 holds up to 2^53, are counters here.
    twice = any(x.dtype in (torch.float64, torch.int64) for x in there)
    words = struct.pack(f"{2 + AXES}q", CODES[code], twice, *sizes)
    words += struct.pack("2dq", *numbers, *(0,) * (2 - len(numbers)), along)
    for x, by in zip(terms, strides, strict=True):
        words += struct.pack("6q", *(NOTHING if x is None else (x.data_ptr(), KINDS[x.dtype], *by)))
    return words + struct.pack("6q", *NOTHING) * (TERMS - len(terms))


def _axes(shape: Sequence[int], strides: Sequence[Sequence[int] | None], row: bool) -> list[tuple[int, ...]]:
    """Size and every term's stride, axis by axis, neighbors that all terms step through evenly made one."""
    every = [(size, *(0 if by is None else by[axis] for by in strides)) for axis, size in enumerate(shape)]
    last = every[-1:] if row else []
    axes: list[tuple[int, ...]] = []
    for axis in every[: len(every) - len(last)]:
        if axis[0] == 1:
            continue
        if axes and all(before == axis[0] * after for before, after in zip(axes[-1][1:], axis[1:], strict=True)):
            axis = (axes.pop()[0] * axis[0], *axis[1:])
        axes.append(axis)
    return axes + last or [(1, *(0,) * len(strides))]


def _term(x: Any, like: Tensor) -> Tensor:
    """A number as a tensor, computed with as torch does: in float32 beside narrower ones."""
    return x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64 if _wide(like) else torch.float32)


def _wide(x: Tensor) -> bool:
    return x.dtype in (torch.float64, torch.int64)


def _unary(code: str, made: tuple[Tensor, ...], x: Tensor) -> Call | None:
    return _call(code, made[0], x)


def _binary(code: str, made: tuple[Tensor, ...], x: Any, y: Any, alpha: float = 1) -> Call | None:
    like = x if isinstance(x, Tensor) else y
    return _call(code, made[0], _term(x, like), _term(y, like), numbers=(alpha,))


for _name in ("neg", "abs", "relu", "reciprocal", "sqrt", "rsqrt", "exp", "expm1", "sigmoid", "silu", "tanh"):
    prepares(getattr(aten, _name).default)(partial(_unary, _name))
for _name in ("sin", "cos", "log", "log1p"):
    prepares(getattr(aten, _name).default)(partial(_unary, _name))
for _name in ("add", "sub", "mul", "div"):
    prepares(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(partial(_binary, _name))
for _name in ("gt", "ge", "lt", "le", "eq", "ne"):
    prepares(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)(partial(_binary, _name))
prepares(aten.maximum.default, aten.clamp_min.default, aten.clamp_min.Tensor)(partial(_binary, "maximum"))
prepares(aten.minimum.default, aten.clamp_max.default, aten.clamp_max.Tensor)(partial(_binary, "minimum"))


@prepares(aten.clamp.default)
def _clamp(made: tuple[Tensor, ...], x: Tensor, least: float | None = None, most: float | None = None) -> Call | None:
    if least is not None and most is not None and most < torch.inf:
        return None
    if least is None:
        return _binary("minimum", made, x, most)
    return _binary("maximum", made, x, least)


@prepares(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(made: tuple[Tensor, ...], x: Tensor, y: Any, alpha: float = 1) -> Call | None:
    return _call("sub", made[0], _term(y, x), x, numbers=(alpha,))


@prepares(aten.pow.Tensor_Scalar)
def _pow(made: tuple[Tensor, ...], x: Tensor, power: float) -> Call | None:
    return _unary("square", made, x) if power == 2 else _unary("sqrt", made, x) if power == 0.5 else None


@prepares(aten.remainder.Scalar)
def _remainder(made: tuple[Tensor, ...], x: Tensor, by: float) -> Call | None:
    return _call("remainder", made[0], x, numbers=(by,))


@prepares(aten.bitwise_not.default, aten.logical_not.default)
def _not(made: tuple[Tensor, ...], x: Tensor) -> Call | None:
    return _unary("not", made, x) if x.dtype == torch.bool else None


@prepares(aten.gelu.default)
def _gelu(made: tuple[Tensor, ...], x: Tensor, *, approximate: str = "none") -> Call | None:
    return _unary("gelu" if approximate == "none" else "gelu_tanh", made, x)


@prepares(aten.softplus.default)
def _softplus(made: tuple[Tensor, ...], x: Tensor, beta: float = 1, threshold: float = 20) -> Call | None:
    return _call("softplus", made[0], x, numbers=(beta, threshold))


@prepares(aten.log_sigmoid_forward.default)
def _log_sigmoid(made: tuple[Tensor, ...], x: Tensor) -> Call | None:
    # The second result is for the backward pass alone.
    return _unary("log_sigmoid", made, x)


@prepares(aten.glu.default)
def _glu(made: tuple[Tensor, ...], x: Tensor, axis: int = -1) -> Call | None:
    return _call("glu", made[0], *x.chunk(2, axis))


@prepares(aten.lerp.Tensor)
def _lerp(made: tuple[Tensor, ...], x: Tensor, y: Tensor, weight: Tensor) -> Call | None:
    return _call("lerp", made[0], x, y, weight)


@prepares(aten.addcmul.default)
def _addcmul(made: tuple[Tensor, ...], x: Tensor, y: Tensor, z: Tensor, *, value: float = 1) -> Call | None:
    return _call("addcmul", made[0], x, y, z, numbers=(value,))


@prepares(aten.where.self)
def _where(made: tuple[Tensor, ...], mask: Tensor, x: Tensor, y: Tensor) -> Call | None:
    return _call("where", made[0], mask, x, y)


@prepares(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(made: tuple[Tensor, ...], x: Tensor, mask: Tensor, value: Any) -> Call | None:
    return _call("where", made[0], mask, _term(value, x), x)


@prepares(aten._to_copy.default, aten.clone.default)
def _copy(made: tuple[Tensor, ...], x: Tensor, **_: Any) -> Call | None:
    return _unary("copy", made, x)


@prepares(aten.cat.default)
def _cat(made: tuple[Tensor, ...], parts: Sequence[Tensor], axis: int = 0) -> Call | None:
    # torch takes empty parts of one axis beside others.
    parts = [x for x in parts if x.numel()]
    return _copies(list(made[0].split([x.shape[axis] for x in parts], axis)), parts) if parts else None


@prepares(aten.stack.default)
def _stack(made: tuple[Tensor, ...], parts: Sequence[Tensor], axis: int = 0) -> Call | None:
    return _copies(list(made[0].unbind(axis)), parts)


def _copies(to: Sequence[Tensor], parts: Sequence[Tensor]) -> Call | None:
    tasks = [_task("copy", pair, (), False, 0) for pair in zip(to, parts, strict=True)]
    known = [task for task in tasks if task is not None]
    if len(known) < len(tasks):
        return None
    return Call("lavagna_pointwise", struct.pack("q", len(known)) + b"".join(known))


def _reduced(code: str, made: tuple[Tensor, ...], x: Tensor, axes: Sequence[int] | None, keep: bool) -> Call | None:
    if axes is None or len(axes) != 1 or not x.numel() or not x.dtype.is_floating_point:
        return None
    out = made[0] if keep else made[0].unsqueeze(axes[0])
    return _call(code, out.movedim(axes[0], -1), x.movedim(axes[0], -1), row=True)


@prepares(aten.sum.dim_IntList)
def _sum(made: tuple[Tensor, ...], x: Tensor, axes: Sequence[int] | None, keep: bool = False, **_: Any) -> Call | None:
    return _reduced("sum", made, x, axes, keep)


@prepares(aten.mean.dim)
def _mean(made: tuple[Tensor, ...], x: Tensor, axes: Sequence[int] | None, keep: bool = False, **_: Any) -> Call | None:
    return _reduced("mean", made, x, axes, keep)


@prepares(aten.linalg_vector_norm.default)
def _norm(
    made: tuple[Tensor, ...],
    x: Tensor,
    power: float = 2,
    axes: Sequence[int] | None = None,
    keep: bool = False,
    **_: Any,
):
    return _reduced("norm", made, x, axes, keep) if power == 2 else None


@prepares(aten.native_layer_norm.default)
def _layer_norm(
    made: tuple[Tensor, ...], x: Tensor, shape: Sequence[int], scale: Tensor | None, shift: Tensor | None, eps: float
):
    if len(shape) != 1 or not x.numel():
        return None
    out, mean, inverse = made
    return _call("layer_norm", out, x, scale, shift, mean, inverse, numbers=(eps,), row=True)


@prepares(aten.gather.default)
def _gather(made: tuple[Tensor, ...], x: Tensor, axis: int, index: Tensor) -> Call | None:
    # An axis of x is stepped through by the index alone; of the others, x may have more than is asked for.
    start = x.narrow(axis, 0, 1)
    for other in range(x.ndim):
        if other != axis % x.ndim:
            start = start.narrow(other, 0, index.shape[other])
    return _call("gather", made[0], start, index, row=True, along=x.stride(axis)) if x.ndim else None
