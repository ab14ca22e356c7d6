"""Functions of `z = step A` that keep their digits where the plain formula loses them, real and complex.

All keep the dtype and have finite gradients wherever they are finite themselves; all but `expm` are elementwise.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Shaped
from torch import Tensor

# Within this radius what follows `phi1` is a series of as many terms as float64 needs: radius^j / (j + 1)! < 2^-53.
RADIUS = 0.5
TERMS = 13


def expm1(z: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "*axes"]:
    """`e^z - 1` without cancellation near zero, complex too, which torch lacks.

    For z = x + iy it is `expm1(x) cos y - 2 sin(y/2)^2 + i e^x sin y`.

    >>> expm1(torch.tensor(1e-20 + 1e-20j, dtype=torch.complex128)).item()
    (1e-20+1e-20j)
    """
    if not z.is_complex():
        return torch.expm1(z)
    x, y = z.real, z.imag
    return torch.complex(torch.expm1(x) * y.cos() - 2 * (0.5 * y).sin().square(), x.exp() * y.sin())


def phi1(z: Shaped[Tensor, "*axes"]) -> Shaped[Tensor, "*axes"]:
    """`(e^z - 1) / z`, the mean of e^(sz) for s from 0 to 1; it is 1 at zero.

    >>> phi1(torch.tensor([0.0, 1e-300, 1e-9], dtype=torch.float64)).tolist()
    [1.0, 1.0, 1.0000000005]
    """
    phi = _Phi.apply(z, 1)
    assert isinstance(phi, Tensor)
    return phi


class _Phi(torch.autograd.Function):
    """`phi_k(z) = sum of z^j / (j + k)!`, whose derivative is `phi_k - k phi_(k + 1)`.

    By that rule and not by those of its steps, which near zero would each have a part in the gradient.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, k: int) -> Tensor:
        return _phi(z, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:
        ctx.k = inputs[1]
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        z, phi = ctx.saved_tensors
        more = _Phi.apply(z, ctx.k + 1) if torch.is_grad_enabled() else _following(z, phi, ctx.k)
        return gradients[0] * (phi - ctx.k * more).conj(), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor) -> Tensor:
        z, phi = ctx.saved_tensors
        return tangents[0] * (phi - ctx.k * _following(z, phi, ctx.k))


def _phi(z: Tensor, k: int) -> Tensor:
    # A harmless value where the quotient is 0 over 0.
    far = torch.where(z == 0, 1, z)
    phi = torch.where(z == 0, 1, expm1(far) / far)
    for j in range(1, k):
        phi = _following(z, phi, j)
    return phi


def _following(z: Tensor, phi: Tensor, k: int) -> Tensor:
    """phi_(k + 1) of phi_k: `(phi_k - 1 / k!) / z`, and near zero a series."""
    near = z.real.abs() + z.imag.abs() < RADIUS if z.is_complex() else z.abs() < RADIUS
    return torch.where(
        near, _series(torch.where(near, z, 0), k + 1), (phi - 1 / math.factorial(k)) / torch.where(near, 1, z)
    )


def expm(z: Shaped[Tensor, "*rows n n"]) -> Shaped[Tensor, "*rows n n"]:
    """The exponential of a matrix, e^z, to the last digits of float64; rounded to the dtype of `z` once at the end.

    >>> expm(torch.tensor([[0.0, 0.1], [0.0, 0.0]]))
    tensor([[1.0000, 0.1000],
            [0.0000, 1.0000]])
    """
    n = z.shape[-1]
    # Below a norm of 1 torch takes polynomials of so low a degree that it is off by 1e-10 (torch 2.13; in float32 by
    # 1e-4). A block of its own that holds the number 2 leads to the longest one, and changes nothing else.
    two = torch.zeros(n + 1, dtype=torch.float64, device=z.device)
    two[n] = 2
    bordered = F.pad(z.to(torch.promote_types(z.dtype, torch.float64)), (0, 1, 0, 1)) + two.diag()
    return torch.linalg.matrix_exp(bordered)[..., :n, :n].to(z.dtype)


def log_bilinear(z: Shaped[Tensor, "*axes"]) -> Complex[Tensor, "*axes"]:
    """`log((1 + z/2) / (1 - z/2))`: the log-decay of a step under the bilinear rule, exact also for a tiny step.

    With `d = |1 - z/2|^2` its real part is `log1p(2 Re z / d) / 2` and its angle that of `1 - |z|^2 / 4 + i Im z`. Real
    z give a complex result too: below -2 the decay is negative and its angle pi. At -2 the decay is zero; there the
    logarithm is clamped as if the smallest normal number were `|1 + z/2|^2`, and its gradient is that of the rest.

    >>> log_bilinear(torch.tensor([1e-12, -6.0], dtype=torch.float64)).tolist()
    [(1e-12+0j), (-0.693147180559945...+3.14159265358979...j)]
    """
    x, y = (z.real, z.imag) if z.is_complex() else (z, torch.zeros_like(z))
    above, below = (1 + 0.5 * x).square() + 0.25 * y.square(), (1 - 0.5 * x).square() + 0.25 * y.square()
    tiny = torch.finfo(x.dtype).tiny
    gain = 2 * x / below
    # log1p is exact for a ratio near 1, and the plain ratio for one near 0, where 1 + gain has lost its digits.
    small = gain < -0.5
    log = torch.where(
        small,
        (above.clamp_min(tiny) / below).log(),
        torch.log1p(torch.where(small, torch.zeros_like(gain), gain)),
    )
    real, imaginary = 1 - 0.25 * (x.square() + y.square()), y
    lost = above < tiny
    return torch.complex(0.5 * log, torch.atan2(imaginary, torch.where(lost, torch.ones_like(real), real)))


def _series(z: Tensor, k: int) -> Tensor:
    """`sum of z^j / (j + k)!` by Horner's rule."""
    total = torch.ones_like(z)
    for j in range(TERMS, 0, -1):
        total = (total * z).mul_(1 / (j + k)).add_(1)
    return total * (1 / math.factorial(k))
