"""Sums of poles at many nodes, block by block: never all terms at once, neither forward nor backward."""

from typing import Any

import torch
from jaxtyping import Complex, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

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

    and so costs half of one term. O(n k m) time; memory O(k m) and one block. Differentiable once in V and z.
    """
    if not conjugates:
        return _Sums.apply(V, z, a, b)
    mode = torch.stack([torch.ones_like(z.real), -2 * z.real, z.real.square() + z.imag.square()], -2)
    weights = torch.cat([2 * V.real, -2 * (V * z.conj().unsqueeze(-1)).real], -1)
    nodes = torch.stack([a * a, a * b, b * b], -1)
    real, imaginary = _PairSums.apply(weights, mode, torch.view_as_real(nodes).movedim(-1, 0)).chunk(2, -2)
    over_a, over_b = torch.complex(real, imaginary).chunk(2, -1)
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
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        V, z, a, b = ctx.saved_tensors
        (grad,) = grads
        grad_V, grad_z = torch.zeros_like(V), torch.zeros_like(z)
        for part in _blocks(len(a), z):
            inverses, own = _inverses(z, a, b, part), grad[..., part, :]
            grad_V += inverses.mH @ own
            grad_z += (inverses.square_().mul_(b[part, None]).conj() * (own @ V.mH)).sum(-2)
        return grad_V, grad_z, None, None


def _inverses(z: Tensor, a: Tensor, b: Tensor, part: slice) -> Tensor:
    return (a[part, None] - b[part, None] * z.unsqueeze(-2)).reciprocal()


class _PairSums(torch.autograd.Function):
    """`sum_n W_nm / (nodes . mode_n)` for real W (.., n, m) and mode (.., 3, n), and complex nodes (2, k, 3).

    Real and imaginary parts are apart everywhere, the real ones before: nodes (2, k, 3), result (.., 2 k, m).
    """

    @staticmethod
    def forward(ctx: Any, W: Tensor, mode: Tensor, nodes: Tensor) -> Tensor:
        ctx.save_for_backward(W, mode, nodes)
        count = nodes.shape[1]
        sums = W.new_empty(*W.shape[:-2], 2, count, W.shape[-1])
        for part in _blocks(count, mode[..., 0, :]):
            x, y = _fractions(mode, nodes[:, part])
            sums[..., 0, part, :], sums[..., 1, part, :] = x @ W, y @ W
        return sums.flatten(-3, -2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        W, mode, nodes = ctx.saved_tensors
        count = nodes.shape[1]
        grad = grads[0].unflatten(-2, (2, count))
        grad_W, grad_mode = torch.zeros_like(W), torch.zeros_like(mode)
        for part in _blocks(count, mode[..., 0, :]):
            x, y = _fractions(mode, nodes[:, part])
            own_x, own_y = grad[..., 0, part, :], grad[..., 1, part, :]
            grad_W += x.mT @ own_x + y.mT @ own_y
            # The derivative of 1 / q is -1 / q^2, and its conjugate carries gradients back.
            wanted_x, wanted_y = own_x @ W.mT, own_y @ W.mT
            across, square = 2 * x * y, x.mul_(x).sub_(y.mul_(y))
            q_x, q_y = wanted_x * square + wanted_y * across, wanted_y * square - wanted_x * across
            grad_mode -= nodes[0, part].mT @ q_x + nodes[1, part].mT @ q_y
        return grad_W, grad_mode, None


def _fractions(mode: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Real and imaginary part of `1 / (nodes . mode)`, each (.., k, n)."""
    x, y = (_combined(part, mode) for part in nodes)
    scale = (x * x).addcmul_(y, y).reciprocal_()
    return x.mul_(scale), y.mul_(scale).neg_()


def _combined(nodes: Tensor, mode: Tensor) -> Tensor:
    """`nodes @ mode` over three numbers, which are too few for a product of matrices to be quick."""
    one, two, three = nodes.unsqueeze(-1).unbind(-2)
    return torch.addcmul(one * mode[..., :1, :], two, mode[..., 1:2, :]).addcmul_(three, mode[..., 2:, :])


def _blocks(count: int, like: Shaped[Tensor, "*rows n"]) -> list[slice]:
    """Runs of nodes, each with about as many terms as a block may have."""
    size = max(1, BLOCK.get(like.device.type, LARGE_BLOCK) // max(1, like.numel()))
    return [slice(start, start + size) for start in range(0, count, size)]
