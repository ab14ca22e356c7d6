"""Sums of powers of a diagonal transition, in two levels: the filter of a system, and what is left of a text.

Step `l = i R + j` with `j < R` has `exp(l z) = exp(i R z) exp(j z)`. With R near the root of the length, all powers of
a mode come from about twice that many exponentials, and the sum over modes or steps is a product of small matrices.
"""

import math

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from lavagna.algebra.transition import NEVER
from lavagna.autocast import without_autocast

# Steps a block where a compiler must not ask how many there are.
COMPILED = 64


def diagonal_kernel(
    weights: Shaped[Tensor, "*#h n"], log_decay: Shaped[Tensor, "*#h n"], length: int, *, conjugates: bool = False
) -> Shaped[Tensor, "*h length"]:
    """The filter of a diagonal system, a sum of exponentials: `K_l = sum_n weights_n exp(l log_decay_n)`, l < length.

    `weights` and `log_decay` (..., n), real or complex, broadcast before the last axis; real parts of `log_decay` may
    be minus infinity. With `conjugates` each mode stands for itself and its conjugate, and K is `2 Re` of the sum. A
    system's free response from a state h0 is the same sum with weights `C h0 exp(log_decay)`.

    Exponents are float64, sums in the precision of `weights`, float32 at least, under autocast too. Cost O(n length)
    products and O(n sqrt(length)) exponentials and memory. Raises ValueError on a length that isn't an int >= 0.

    >>> half = torch.tensor([0.5], dtype=torch.float64)
    >>> diagonal_kernel(torch.ones_like(half), half.log(), 4).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """
    if not isinstance(length, int) or isinstance(length, bool) or length < 0:
        raise ValueError(f"diagonal_kernel: length must be an int >= 0, but came as {length!r}.")
    inside = _block(length)
    blocks = -(-length // inside)
    dtype = _dtype(weights)
    # Weights meet the large powers in float64, where what grows and what is small have room for each other.
    early = (_double(weights).unsqueeze(-2) * _powers(log_decay, blocks, inside)).to(_like(dtype, weights, log_decay))
    late = _powers(log_decay, inside, 1).to(_like(dtype, log_decay))
    with without_autocast(early):
        filters = 2 * _real_product(early, late) if conjugates else early @ late.mT.to(early.dtype)
    return filters.flatten(-2)[..., :length]


def diagonal_state(
    u: Shaped[Tensor, "*b h v t"],
    log_decay: Shaped[Tensor, "h k"],
    B: Shaped[Tensor, "h k"],
    memory: Shaped[Tensor, "*b h v k"],
    counts: Int[Tensor, " b"] | None = None,
) -> Shaped[Tensor, "*b h v k"]:
    """The state of a diagonal system after a text, with nothing of the steps between.

        S = exp(t z) memory + sum over j < t of exp((t - 1 - j) z) B u_j          z = log_decay

    The last state of `recur` with `diagonal(log_decay)`, keys B and values u, where only that is wanted. `counts` (b,)
    says how many of a row's steps are real, the first ones; what stands behind is not read. Exponents are float64, sums
    in the precision of `memory`, float32 at least. Cost O(h v t k), memory O(h k sqrt(b v t)) for any t, 0 included.

    >>> u, memory = torch.ones(1, 1, 2, dtype=torch.float64), torch.full((1, 1, 1), 8.0, dtype=torch.float64)
    >>> half, one = memory[0].new_tensor([[0.5]]), memory[0].new_tensor([[1.0]])
    >>> diagonal_state(u, half.log(), one, memory).item()  # 8 -> 8/2 + 1 = 5 -> 5/2 + 1
    3.5
    """
    steps, dtype = u.shape[-1], _dtype(memory)
    rows = max(memory.numel() // max(math.prod(B.shape), 1), 1)
    # One exponential a step of a block serves all rows, and one state a block is kept for each: the two weigh the same.
    inside = _block(steps, rows)
    blocks = max(-(-steps // inside), 1)
    # Compilers expect other strides than padding gives where its input lies in another order.
    backwards = _last_first(u.contiguous(), counts)
    padded = torch.nn.functional.pad(backwards, (0, blocks * inside - steps)).unflatten(-1, (blocks, inside))
    padded = padded.to(_like(dtype, u))
    near, far = _powers(log_decay, inside, 1), _powers(log_decay, blocks, inside)
    sums = _summed(padded, near.to(_like(dtype, near)))
    far = (far * _double(B).unsqueeze(-2)).to(_like(dtype, far, B))
    written = torch.einsum("...hvmk,hmk->...hvk", *_alike(sums, far))
    return _faded(memory.to(_like(dtype, memory)), log_decay, steps, counts) + written


def _block(steps: int, rows: int = 1) -> int:
    """Steps a block, near the root of `steps * rows`; under a compiler a fixed number, so that a graph fits lengths."""
    if torch.compiler.is_compiling():
        return COMPILED
    return max(min(math.isqrt(max(steps * rows - 1, 0)) + 1, steps), 1)


def _faded(memory: Tensor, log_decay: Tensor, steps: int, counts: Tensor | None) -> Tensor:
    """What is left of the state itself, by each row's own steps."""
    z = _finite(log_decay).unsqueeze(-2)
    after = z * steps if counts is None else z * counts.to(torch.float64)[:, None, None, None]
    return after.exp().to(_like(_dtype(memory), log_decay)) * memory


def _last_first(u: Tensor, counts: Tensor | None) -> Tensor:
    """Each row's real steps, the last one first, and zeros behind."""
    if counts is None:
        return u.flip(-1)
    place = counts[:, None] - 1 - torch.arange(u.shape[-1], device=u.device)
    place = place[:, None, None]
    return u.gather(-1, place.clamp_min(0).expand(u.shape)).masked_fill(place < 0, 0)


def _summed(blocks: Tensor, powers: Tensor) -> Tensor:
    """Each block's steps (..., h, v, m, r) summed with the powers (h, r, k); a real text needs no complex products."""
    if blocks.is_complex() or not powers.is_complex():
        return torch.einsum("...hvmr,hrk->...hvmk", *_alike(blocks, powers))
    sums = torch.einsum("...hvmr,hrk->...hvmk", blocks, _parts(powers))
    return torch.complex(*sums.chunk(2, -1))


def _powers(log_decay: Tensor, count: int, stride: int) -> Tensor:
    """(..., count, n) in double precision: `exp(stride i log_decay)` for i < count."""
    exponents = torch.arange(count, dtype=torch.float64, device=log_decay.device) * stride
    z = _finite(log_decay)
    # The strides of a product with two axes of one are not those that a compiler foretells.
    return (z * exponents).exp().unsqueeze(-1) if z.shape[-1] == 1 else (exponents[:, None] * z.unsqueeze(-2)).exp()


def _finite(log_decay: Tensor) -> Tensor:
    """In double precision and without minus infinity, which makes NaN of 0 steps."""
    z = _double(log_decay)
    return torch.complex(z.real.clamp_min(NEVER), z.imag) if z.is_complex() else z.clamp_min(NEVER)


def _real_product(x: Tensor, y: Tensor) -> Tensor:
    """The real part of `x y^T`, as one product of real matrices."""
    if not y.is_complex():
        return x.real @ y.mT
    return _parts(x) @ torch.cat([y.real, -y.imag], -1).mT


def _parts(x: Tensor) -> Tensor:
    """Real and imaginary parts side by side."""
    return torch.cat([x.real, x.imag], -1)


def _double(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32


def _like(dtype: torch.dtype, *xs: Tensor) -> torch.dtype:
    """`dtype`, complex where any of these is."""
    return torch.promote_types(dtype, torch.complex64) if any(x.is_complex() for x in xs) else dtype


def _alike(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.to(dtype), y.to(dtype)
