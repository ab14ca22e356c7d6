"""What the kernels' operators have in common: the library, their registration, tensors as kernels read them."""

import ctypes
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

from lavagna.derivatives import forward_mode, only_values
from lavagna.kernels.cpu.library import library

# Loaded once, when the module is: a compiler that traces a call finds a constant.
LIBRARY = library()
# Every operator of these kernels is defined and implemented here.
OPERATORS = torch.library.Library("lavagna", "FRAGMENT")
# A kind of number to a kernel: which, and whether complex.
ELEMENTS = {
    torch.float32: (0, 0),
    torch.float64: (1, 0),
    torch.bfloat16: (2, 0),
    torch.complex64: (0, 1),
    torch.complex128: (1, 1),
}
# Numbers of a memory, times steps, from which on a second thread costs less than it saves.
WORTH = 1 << 17
# Bytes of a new block from which on large pages are asked for.
LARGE = 1 << 22
# A call as a kernel reads it is one block of whole numbers. Until it is packed, tensors in it stand for where they lie.
Block = Sequence[int | Tensor]
# What stands in a block for a tensor that is not there.
NOTHING = (0, 0, 0, 0, 1, 0, 0)


def register(name: str, compute: Callable[..., Any], shapes: Callable[..., Any]) -> Any:
    """Let `compute` serve an operator that is defined, and `shapes` its tracing; returns the operator, to be called.

    What they return None for, the operator returns empty.
    """
    OPERATORS.impl(name, _filled(_here(name, compute)), "CPU")
    torch.library.register_fake(f"lavagna::{name}", _filled(_here(name, shapes)), lib=OPERATORS)
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.lavagna, packet), overload or "default")


def _here(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # The dispatcher looks for one device only among those of its own operators, and takes derivatives forward of others
    # for zeros.
    @wraps(function)
    def here(*given: Any, **options: Any) -> Any:
        for x in given:
            if isinstance(x, Tensor):
                on_cpu(name, x.shape, x.device)
        if forward_mode():
            raise ValueError(
                f"{name}: the kernel has no rule for forward-mode derivatives. Use torch's forms, backend='torch'."
            )
        return function(*given, **options)

    return here


def on_cpu(name: str, shape: torch.Size, device: torch.device) -> None:
    """Raises ValueError, naming the operator, where a tensor is on another device."""
    if device.type != "cpu":
        raise ValueError(
            f"{name}: the kernel reads the memory of a CPU, but a tensor {tuple(shape)} is on {device}. "
            "Move all to one device."
        )


def _filled(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def filled(*given: Any, **options: Any) -> Any:
        made = function(*given, **options)
        return made if isinstance(made, Tensor) else tuple(torch.empty(0) if x is None else x for x in made)

    return filled


def direct(operator: Any, compute: Callable[..., Any]) -> Callable[..., Any]:
    """The operator, or what computes it itself where torch's dispatcher, which costs more than a step, has no part."""
    here = _here(operator.name().split("::")[1], compute)

    def called(*given: Any) -> Any:
        return here(*given) if only_values(given) else operator(*given)

    return called


def differentiable(name: str, differentiate: Callable[..., tuple], remember: Callable[..., None]) -> None:
    """Declare gradients: `remember(ctx, inputs, output)` keeps what `differentiate(ctx, *incoming)` takes them of.

    An incoming gradient is None where nothing hangs on what it would be of: `arrived`. Where none arrives at all, as
    behind an operator that has an undefined one, nothing is asked.
    """

    def set_up(ctx: Any, inputs: tuple, output: Any) -> None:
        remember(ctx, inputs, output)
        ctx.arguments = len(inputs)
        # Else zeros as large as what is kept for the backward pass would be made.
        ctx.set_materialize_grads(False)

    def back(ctx: Any, *incoming: Tensor | None) -> tuple:
        undefined = all(d is None for d in incoming)
        return (None,) * ctx.arguments if undefined else differentiate(ctx, *incoming)

    torch.library.register_autograd(f"lavagna::{name}", back, setup_context=set_up, lib=OPERATORS)


def vector_bytes() -> int:
    """Bytes of a vector of the loaded kernels."""
    return {"plain": 16, "avx2": 32, "avx512": 64}[LIBRARY.level]


def threads(numbers: int | torch.SymInt) -> int:
    """How many threads are worth it for a call that touches so many numbers of its memory, over all steps."""
    return torch.get_num_threads() if numbers >= WORTH else 1


def wide_of(*parts: Tensor | None) -> torch.dtype:
    """What a kernel computes in: float64 where anything is, else float32."""
    return torch.float64 if any(x is not None and x.dtype == torch.float64 for x in parts) else torch.float32


def written(dtype: torch.dtype, wide: torch.dtype) -> torch.dtype:
    """What a kernel writes for a result of some dtype: bfloat16 is rounded as it is written, else it is as computed."""
    return dtype if dtype == torch.bfloat16 and wide == torch.float32 else wide


def pieces(steps: Any, segment: Any, rows: Any, *, packed: bool) -> int | torch.SymInt:
    """How many states in front of segments of steps all rows have, packed side by side in one or each on its own.

    Sizes are whole numbers, which tracing may leave open.
    """
    return steps // segment + rows if packed else -(-steps // segment) * rows


def dense(x: Tensor) -> Tensor:
    """A tensor as a kernel reads it: the last axis side by side, a dtype it knows, no sign or conjugate pending."""
    if x.dtype not in ELEMENTS:
        x = x.to(torch.complex64 if x.is_complex() else torch.float32)
    x = _there(x)
    return x if x.is_contiguous() or x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def flat(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor without gaps or a pending sign, in its dtype or another."""
    return _there(x if dtype is None or x.dtype == dtype else x.to(dtype)).contiguous()


def _there(x: Tensor) -> Tensor:
    """A tensor whose memory holds its numbers: no sign or conjugate pending, nor torch's zeros that have no memory."""
    x = x.clone() if x._is_zerotensor() else x
    return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x


def each_dense(*parts: Tensor | None) -> tuple[Tensor | None, ...]:
    """Every tensor that is there, dense."""
    return tuple(None if x is None else dense(x) for x in parts)


def each_flat(*parts: Tensor | None, dtype: torch.dtype | None = None) -> tuple[Tensor | None, ...]:
    """Every tensor that is there, flat, in its dtype or another."""
    return tuple(None if x is None else flat(x, dtype) for x in parts)


def operand(x: Tensor, heads: int = 1) -> tuple[int | Tensor, ...]:
    """A dense tensor (b, t, n) or (b, t, h, n) in a block, with `heads` value heads; axes of one step are repeated."""
    return x, *_layout(x.shape, x.stride(), x.dtype, heads)


@lru_cache(1024)
def _layout(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, heads: int) -> tuple[int, ...]:
    group = shape[2] if len(shape) == 4 else 1
    return (
        strides[0] if shape[0] > 1 else 0,
        strides[1] if shape[1] > 1 else 0,
        *((strides[2], heads // group) if group > 1 else (0, 1)),
        *ELEMENTS[dtype],
    )


def pointer(x: Tensor | None) -> int | Tensor:
    """Where a tensor lies, in a block; 0 where there is none."""
    return 0 if x is None else x


def packed(block: Block) -> bytes:
    """A call as a kernel reads it: 64-bit integers."""
    return array("q", [x.data_ptr() if isinstance(x, Tensor) else x for x in block]).tobytes()


def call(name: str, block: Block) -> None:
    """Call a kernel by its name without `lavagna_`. Raises RuntimeError where there are no kernels."""
    function(name)(packed(block))


def function(name: str) -> Callable[[bytes | int], None]:
    """A kernel by its name without `lavagna_`, called with a packed block or where one lies.

    Raises RuntimeError where there are no kernels.
    """
    if LIBRARY.functions is None:
        raise RuntimeError(f"{name}: the CPU kernels are {LIBRARY.level}; torch must serve.")
    found = getattr(LIBRARY.functions, f"lavagna_{name}")
    found.argtypes, found.restype = (ctypes.c_void_p,), None
    return found


def in_large_pages(made: Iterable[Tensor | None]) -> None:
    """Ask for large pages for new tensors that are large, nothing in them touched yet."""
    for x in made:
        if x is not None and x.nbytes >= LARGE:
            call("large_pages", (x, x.nbytes))


def arrived(incoming: Iterable[Tensor | None], wide: torch.dtype, *shapes: torch.Size) -> list[Tensor]:
    """Incoming gradients; where nothing hangs on what one would be of, a row of zeros as if it had that shape."""
    return [
        torch.zeros((1,) * (len(shape) - 1) + shape[-1:], dtype=wide).expand(shape) if d is None else d
        for d, shape in zip(incoming, shapes, strict=True)
    ]
