"""Sums of poles at many nodes, block by block: never all terms at once, neither forward nor backward."""

from typing import Any

import torch
from jaxtyping import Complex, Shaped
from torch import Tensor

from lavagna.derivatives import apart, beyond_backward, gradients_again

# Terms of a block of nodes: on a CPU few enough to stay in the cache, elsewhere enough to keep a device busy.
BLOCK = {"cpu": 2**17}
LARGE_BLOCK = 2**22


def cauchy_sums(
    V: Complex[Tensor, "*rows n m"],
    z: Complex[Tensor, "*rows n"],
    a: Complex[Tensor, " k"],
    b: Complex[Tensor, " k"],
    *,
    conjugates: bool,
) -> Complex[Tensor, "*rows k m"]:
    """`sum_n V_nm / (a_k - b_k z_n)` at nodes a, b; with `conjugates` each term and that of conj(V), conj(z).

    All complex128. Such a pair is one fraction with real numbers for weights and for all that depends on the mode,

        (2 Re V a - 2 Re(V conj z) b) / (a^2 - 2 Re z a b + |z|^2 b^2),

    and so costs half of one term. O(n k m) time; memory O(k m) and one block, but all terms for gradients of gradients
    and in `torch.func`. Differentiable in V and z.
    """
    blockwise = beyond_backward() is None
    if not conjugates:
        return _Sums.apply(V, z, a, b) if blockwise else _terms(V, z, a, b)
    mode = torch.stack([torch.ones_like(z.real), -2 * z.real, z.real.square() + z.imag.square()], -2)
    weights = torch.cat([2 * V.real, -2 * (V * z.conj().unsqueeze(-1)).real], -1)
    return _PairSums.apply(weights, mode, a, b) if blockwise else _pair_terms(weights, mode, a, b)


def _terms(V: Tensor, z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return _inverses(z, a, b, slice(None)) @ V


def _pair_terms(W: Tensor, mode: Tensor, a: Tensor, b: Tensor) -> Tensor:
    squares = torch.stack([a * a, a * b, b * b], -1)
    over_a, over_b = ((squares @ mode.to(a.dtype)).reciprocal() @ W.to(a.dtype)).chunk(2, -1)
    return a[:, None] * over_a + b[:, None] * over_b


class _Sums(torch.autograd.Function):
    """`cauchy_sums` term by term."""

    @staticmethod
    def forward(ctx: Any, V: Tensor, z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(V, z, a, b)
        # Filled in place: small results kept between large blocks would leave holes of their size in the heap.
        sums = V.new_empty(*z.shape[:-1], len(a), V.shape[-1])
        for part in _blocks(len(a), z):
            sums[..., part, :] = _inverses(z, a, b, part) @ V
        return sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        V, z, a, b = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            V, z = apart((V, z))
            return *gradients_again((V, z), lambda: (_terms(V, z, a, b),), grads), None, None
        grad_V, grad_z = torch.zeros_like(V), torch.zeros_like(z)
        for part in _blocks(len(a), z):
            inverses, own = _inverses(z, a, b, part), grad[..., part, :]
            grad_V += inverses.mH @ own
            grad_z += (inverses.square_().mul_(b[part, None]).conj() * (own @ V.mH)).sum(-2)
        return grad_V, grad_z, None, None


def _inverses(z: Tensor, a: Tensor, b: Tensor, part: slice) -> Tensor:
    return (a[part, None] - b[part, None] * z.unsqueeze(-2)).reciprocal()


class _PairSums(torch.autograd.Function):
    """`sum_n (a W_n + b W'_n) / (a^2 mode_0n + a b mode_1n + b^2 mode_2n)`, [W, W'] and modes real."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, mode: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(W, mode, a, b)
        sums = a.new_empty(*W.shape[:-2], len(a), W.shape[-1] // 2)
        for part in _blocks(len(a), mode[..., 0, :]):
            x, y = _fractions(mode, a[part], b[part])
            over_a, over_b = torch.complex(x @ W, y @ W).chunk(2, -1)
            sums[..., part, :] = a[part, None] * over_a + b[part, None] * over_b
        return sums

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        W, mode, a, b = ctx.saved_tensors
        if torch.is_grad_enabled():
            W, mode = apart((W, mode))
            return *gradients_again((W, mode), lambda: (_pair_terms(W, mode, a, b),), grads), None, None
        grad_W, grad_mode = torch.zeros_like(W), torch.zeros_like(mode)
        for part in _blocks(len(a), mode[..., 0, :]):
            own_a, own_b = a[part, None], b[part, None]
            x, y = _fractions(mode, a[part], b[part])
            grad = grads[0][..., part, :]
            own = torch.cat([grad * own_a.conj(), grad * own_b.conj()], -1)
            # Products of what lies strided, as parts of complex numbers do, are several times slower.
            own_x, own_y = own.real.contiguous(), own.imag.contiguous()
            grad_W += x.mT @ own_x + y.mT @ own_y
            # The derivative of 1 / q is -1 / q^2, and its conjugate carries gradients back.
            wanted_x, wanted_y = own_x @ W.mT, own_y @ W.mT
            across, square = 2 * x * y, x.mul_(x).sub_(y.mul_(y))
            q_x, q_y = wanted_x * square + wanted_y * across, wanted_y * square - wanted_x * across
            real, imaginary = (part.mT.contiguous() for part in _nodes(a[part], b[part]))
            grad_mode -= real @ q_x + imaginary @ q_y
        return grad_W, grad_mode, None, None


def _nodes(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """What multiplies the three real numbers of a mode, (k, 3): real and imaginary parts."""
    nodes = torch.stack([a * a, a * b, b * b], -1)
    return nodes.real, nodes.imag


def _fractions(mode: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of one over the denominator, each (.., k, n)."""
    x, y = (_combined(part, mode) for part in _nodes(a, b))
    scale = (x * x).addcmul_(y, y).reciprocal_()
    return x.mul_(scale), y.mul_(scale).neg_()


def _combined(nodes: Tensor, mode: Tensor) -> Tensor:
    """`nodes @ mode` over three numbers, which are too few for a product of matrices to be quick."""
    one, two, three = nodes.unsqueeze(-1).unbind(-2)
    return torch.addcmul(one * mode[..., :1, :], two, mode[..., 1:2, :]).addcmul_(three, mode[..., 2:, :])


def _blocks(count: int, like: Shaped[Tensor, "*rows n"]) -> list[slice]:
    """Runs of nodes, each with about as many terms as a block may have."""
    size = max(1, BLOCK.get(like.device.type, LARGE_BLOCK) // max(1, like.numel()))
    # One block has the same slice for every length, so that a compiler keeps one graph.
    return [slice(start, start + size) for start in range(0, count, size)] if count > size else [slice(None)]
