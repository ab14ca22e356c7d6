"""What the kernels' operators have in common: the library, their registration, tensors as kernels read them."""

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor

from lavagna.derivatives import only_values
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
    # The dispatcher looks for one device only among those of its own operators.
    @wraps(function)
    def here(*given: Any, **options: Any) -> Any:
        for x in given:
            if isinstance(x, Tensor) and x.device.type != "cpu":
                raise ValueError(
                    f"{name}: the kernel reads the memory of a CPU, but a tensor {tuple(x.shape)} is on {x.device}. "
                    "Move all to one device."
                )
        return function(*given, **options)

    return here


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
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    return x if x.is_contiguous() or x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def flat(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor without gaps or a pending sign, in its dtype or another."""
    x = x if dtype is None or x.dtype == dtype else x.to(dtype)
    return (
        x if x.is_contiguous() and not x.is_conj() and not x.is_neg() else x.resolve_conj().resolve_neg().contiguous()
    )


def operand(x: Tensor, heads: int = 1) -> tuple[int, ...]:
    """A dense tensor (b, t, n) or (b, t, h, n) in a block, with `heads` value heads; axes of one step are repeated."""
    return x.data_ptr(), *_layout(x.shape, x.stride(), x.dtype, heads)


@lru_cache(1024)
def _layout(shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, heads: int) -> tuple[int, ...]:
    group = shape[2] if len(shape) == 4 else 1
    return (
        strides[0] if shape[0] > 1 else 0,
        strides[1] if shape[1] > 1 else 0,
        *((strides[2], heads // group) if group > 1 else (0, 1)),
        *ELEMENTS[dtype],
    )


def pointer(x: Tensor | None) -> int:
    """Where a tensor lies; 0 where there is none, or nothing in it."""
    return 0 if x is None else x.data_ptr()


def call(function: str, block: Sequence[int]) -> None:
    """Call a kernel by its name without `lavagna_`. Raises RuntimeError where there are no kernels."""
    if LIBRARY.functions is None:
        raise RuntimeError(f"{function}: the CPU kernels are {LIBRARY.level}; torch must serve.")
    getattr(LIBRARY.functions, f"lavagna_{function}")(packed(block))


def in_large_pages(made: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    """The same new tensors, nothing in them touched yet, in large pages where they are large."""
    for x in made:
        if x is not None and x.nbytes >= LARGE:
            call("large_pages", (x.data_ptr(), x.nbytes))
    return made


def packed(block: Sequence[int]) -> bytes:
    """A call as a kernel reads it: 64-bit integers."""
    return struct.pack(f"{len(block)}q", *block)


def as_they_lie(
    dense_ones: Iterable[Tensor | None], flat_ones: Iterable[Tensor | None], wide: torch.dtype, *others: object
) -> bool:
    """Whether a kernel reads these tensors themselves, the flat ones in a dtype, and there are no others, or False."""
    return (
        all(x is None or x is False for x in others)
        and all(x is None or dense(x) is x for x in dense_ones)
        and all(x is None or flat(x, wide) is x for x in flat_ones)
    )


def arrived(incoming: Iterable[Tensor | None], wide: torch.dtype, *shapes: torch.Size) -> list[Tensor]:
    """Incoming gradients; where nothing hangs on what one would be of, a row of zeros as if it had that shape."""
    return [
        torch.zeros((1,) * (len(shape) - 1) + shape[-1:], dtype=wide).expand(shape) if d is None else d
        for d, shape in zip(incoming, shapes, strict=True)
    ]
