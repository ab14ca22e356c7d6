"""The convolution form: where the transition never changes, every step reads the past through one filter."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor

from lavagna.autocast import without_autocast

METHODS = ("fft", "direct")
# Steps of a block of the direct method.
SHORT = 64
# Entries of one of its triangles, so that one step meets many taps at once and many steps few. Up to so many products
# a channel, or with a few taps, it costs little more than transforms do, and is exactly causal.
ENTRIES = 4096
FEW = 16


class Convolved(NamedTuple):
    """The filtered steps, and the last inputs, which are all that a stream must carry."""

    output: Shaped[Tensor, "*a t"]
    tail: Shaped[Tensor, "*a past"]


def convolution(
    u: Shaped[Tensor, "..."],
    kernel: Shaped[Tensor, "..."],
    tail: Shaped[Tensor, "..."] | None = None,
    *,
    method: str = "auto",
) -> Convolved:
    """Filter a piece of a stream, and return with it what the next piece needs of the past.

        y_t = sum over j < L of K_j u_{t-j},          u_{-1}, u_{-2}, ... from the tail

    `u` (..., t) and `kernel` (..., L) have time last; the axes before it broadcast. `tail` (..., L - 1) holds the
    inputs just before `u`, zeros where None; the returned one holds the last L - 1 inputs. A stream cut anywhere equals
    the whole. Options, numbers, cost and errors are those of `convolve`, which spares the tail.

    >>> u, kernel = torch.randn(3, 7, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    >>> first = convolution(u[:, :2], kernel)
    >>> second = convolution(u[:, 2:], kernel, first.tail)
    >>> torch.allclose(torch.cat([first.output, second.output], -1), convolve(u, kernel))
    True
    """
    _check("convolution", u, kernel, method)
    past = kernel.shape[-1] - 1
    before = u.new_zeros(*u.shape[:-1], past) if tail is None else _tail(tail, u, past)
    inputs = torch.cat([before, u], -1)
    output = _convolve(u if tail is None else inputs, kernel, u.shape[-1], method, u.dtype)
    return Convolved(output, inputs[..., inputs.shape[-1] - past :].clone())


def convolve(u: Shaped[Tensor, "..."], kernel: Shaped[Tensor, "..."], *, method: str = "auto") -> Shaped[Tensor, "..."]:
    """Filter a text that begins here: `y_t = sum over j <= t of K_j u_{t-j}`, nothing wrapped around.

    `u` (..., t) and `kernel` (..., L), real or complex, have time last; the axes before it broadcast; t and L may be
    any, 0 too, the kernel longer or shorter than the text.

    - method: "fft", cost O((t + L) log(t + L)); "direct", cost O(t L), memory O(t + L); "auto" takes direct where L is
      at most 16 or t L at most 4096, save under `torch.compile`. Both give the same numbers. The direct one is exactly
      causal: later inputs change no bit. A transform spreads its rounding over all steps, 1e-7 of the largest input in
      float32.

    Sums are float32, float64 where `u` or `kernel` is, whatever came, inside `torch.autocast` too; the output has the
    dtype of `u`, made complex where the kernel is. Raises ValueError on shapes, dtypes or options that don't fit.
    Differentiable in both. Equal to `recur` with a constant transition, for the kernel of its powers.

    >>> convolve(torch.tensor([1.0, 0, 0, 2]), torch.tensor([1, 0.5, 0.25])).tolist()
    [1.0, 0.5, 0.25, 2.0]
    """
    _check("convolve", u, kernel, method)
    return _convolve(u, kernel, u.shape[-1], method, u.dtype)


def fast_length(length: int) -> int:
    """The least length from here on that transforms quickly: 8, 9, 10 or 12 times a power of two.

    >>> [fast_length(length) for length in (5, 17, 33, 1000, 16385)]
    [5, 18, 36, 1024, 18432]
    """
    if torch.compiler.is_compiling():
        # A length that is not known yet has no bits to count.
        return -(-length // SHORT) * SHORT
    if length <= 12:
        return length
    scale = 1 << (length - 1).bit_length() - 4
    return min(scale * factor for factor in (8, 9, 10, 12, 16) if scale * factor >= length)


def _convolve(inputs: Tensor, kernel: Tensor, steps: int, method: str, dtype: torch.dtype) -> Tensor:
    """The last `steps` outputs; what `inputs` has before them is the past."""
    # Taps that reach behind the first input are never read.
    kernel = kernel[..., : max(inputs.shape[-1], 1)]
    if method == "auto":
        taps = kernel.shape[-1]
        # Triangles have fixed sizes: a compiler would make a graph for every length.
        few = not torch.compiler.is_compiling() and (taps <= FEW or steps * taps <= ENTRIES)
        method = "direct" if few else "fft"
    double = (torch.float64, torch.complex128)
    wide = torch.float64 if inputs.dtype in double or kernel.dtype in double else torch.float32
    run = _direct if method == "direct" else _transformed
    if not steps or not inputs.numel() or not kernel.numel():
        run = _nothing
    # Autocast would take the products of the direct method to half precision.
    with without_autocast(inputs):
        output = run(_in(inputs, wide), _in(kernel, wide), steps)
    return output if output.is_complex() and not dtype.is_complex else output.to(dtype)


def _in(x: Tensor, wide: torch.dtype) -> Tensor:
    return x.to(torch.promote_types(wide, torch.complex64) if x.is_complex() else wide)


def _nothing(inputs: Tensor, kernel: Tensor, steps: int) -> Tensor:
    """No step, no row or no tap: zeros of the right shape and dtype, for which transforms have no length."""
    return inputs[..., inputs.shape[-1] - steps :] * kernel.sum(-1, keepdim=True) * 0


def _transformed(inputs: Tensor, kernel: Tensor, steps: int) -> Tensor:
    past = inputs.shape[-1] - steps
    # What wraps around falls on the past alone as long as the transform holds inputs and filter side by side.
    size = fast_length(max(past, kernel.shape[-1] - 1) + steps)
    if inputs.is_complex() or kernel.is_complex():
        product = torch.fft.fft(inputs, n=size) * torch.fft.fft(kernel, n=size)
        return torch.fft.ifft(product)[..., past : past + steps]
    product = _spectrum(inputs, size) * _spectrum(kernel, size)
    return torch.fft.irfft(product, n=size)[..., past : past + steps]


class _Spectrum(torch.autograd.Function):
    """The transform of a real signal, padded. Where torch goes back by a complex one, this does by a real one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, size: int) -> Tensor:
        return torch.fft.rfft(x, n=size)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.length, ctx.size = inputs[0].shape[-1], inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        # The inverse counts every frequency twice, for its mirror image, but the first and, of an even size, the last.
        ends = torch.zeros(gradient.shape[-1], device=gradient.device, dtype=gradient.real.dtype)
        ends[0] = 1
        ends[-1] = 1 if ctx.size % 2 == 0 else ends[-1]
        halved = gradient * (0.5 + 0.5 * ends)
        return torch.fft.irfft(halved, n=ctx.size, norm="forward")[..., : ctx.length], None


def _spectrum(x: Tensor, size: int) -> Tensor:
    spectrum = _Spectrum.apply(x, size)
    if torch.compiler.is_compiling():
        # Inductor misreads a transform of permuted axes in the backward pass; real pairs are laid out anew.
        spectrum = torch.view_as_complex(torch.view_as_real(spectrum) + 0.0)
    return spectrum  # pyright: ignore[reportReturnType]


def _direct(inputs: Tensor, kernel: Tensor, steps: int) -> Tensor:
    """Block by block of steps, and for each block of taps one product with a triangle of the filter."""
    past, taps = inputs.shape[-1] - steps, kernel.shape[-1]
    dtype = torch.promote_types(inputs.dtype, kernel.dtype)
    inputs, kernel = inputs.to(dtype), kernel.to(dtype)
    rows = max(min(steps, SHORT), 1)
    width = min(taps, max(ENTRIES // rows, SHORT))
    if rows == steps and width == taps:
        return torch.einsum("...sp,...p->...s", _triangle(kernel, rows, past), inputs.flip(-1))
    blocks, groups = -(-steps // rows), -(-taps // width)
    # Before the first step as many inputs as there are taps, behind the last whole blocks.
    before = groups * width - 1
    padded = F.pad(inputs, (before - past, blocks * rows - steps))
    output = padded.new_zeros(())
    for taken in range(groups):
        triangle = _triangle(kernel[..., taken * width : (taken + 1) * width], rows, width - 1)
        first = before - taken * width - (width - 1)
        windows = padded[..., first : first + width - 1 + blocks * rows].unfold(-1, width - 1 + rows, rows)
        output = output + torch.einsum("...sp,...ip->...is", triangle, windows.flip(-1))
    return output.flatten(-2)[..., :steps]


def _triangle(kernel: Tensor, rows: int, past: int) -> Tensor:
    """(..., rows, past + rows): what each input, the last one first, is worth to each of the last `rows` steps."""
    return F.pad(kernel, (rows - 1, past + rows - kernel.shape[-1])).unfold(-1, past + rows, 1)


def _tail(tail: Tensor, u: Tensor, past: int) -> Tensor:
    fits = isinstance(tail, Tensor) and tail.ndim == u.ndim and tail.shape[-1] == past
    if not fits or any(own not in (1, axis) for own, axis in zip(tail.shape[:-1], u.shape[:-1], strict=True)):
        came = tuple(tail.shape) if isinstance(tail, Tensor) else type(tail).__name__
        raise ValueError(
            f"convolution: tail must hold the last L - 1 = {past} inputs, {(*u.shape[:-1], past)}, but came as {came}. "
            "Pass what the call before returned, or None to start."
        )
    return tail.to(u.dtype).expand(*u.shape[:-1], past)


def _check(call: str, u: Tensor, kernel: Tensor, method: str) -> None:
    named = {"u": u, "kernel": kernel}
    for name, x in named.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"{call}: {name} must be a tensor, but came as {type(x).__name__}.")
        if not x.is_floating_point() and not x.is_complex():
            raise ValueError(f"{call}: {name} must be real or complex floating, but came as {x.dtype}. Use .float().")
    if not u.ndim or not kernel.ndim or (call == "convolution" and not kernel.shape[-1]):
        raise ValueError(f"{call}: u must be (..., t) and kernel (..., L) with L >= 1, but came as {_shapes(named)}.")
    rest = zip(reversed(u.shape[:-1]), reversed(kernel.shape[:-1]), strict=False)
    if any(one != other and 1 not in (one, other) for one, other in rest):
        raise ValueError(
            f"{call}: the axes before the last of u and kernel must broadcast, but came as {_shapes(named)}."
        )
    if u.device != kernel.device:
        raise ValueError(f"{call}: u is on {u.device}, but kernel on {kernel.device}. Move them to one device.")
    if method not in ("auto", *METHODS):
        raise ValueError(f"{call}: method must be one of {', '.join(METHODS)} or auto, but came as {method!r}.")


def _shapes(named: dict[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
