"""The logarithm of a diagonal system's decay over one step, which no precision rounds to one."""

import torch
from jaxtyping import Shaped
from torch import Tensor

from lavagna.lti.exponential import log_bilinear


def log_decay(z: Shaped[Tensor, "*axes"], method: str) -> Shaped[Tensor, "*axes"]:
    """The natural logarithm of what `discretize` makes of a diagonal `A`, for `z = step A`: `Ab = exp(log_decay)`.

    `z` itself for `zoh` and `mamba`, `log_bilinear(z)` for `bilinear`, `log(1 + z)` for `euler`, `-log(1 - z)` for
    `backward_euler`. The logarithm of a tiny step is exact where the decay itself would be rounded to one. All but the
    first two give a complex result, since the decay of a long step may be negative. Gradients are finite also where the
    decay is zero.

    >>> log_decay(torch.tensor([-1e-20, -3.0], dtype=torch.float64), "euler").tolist()
    [(-1e-20+0j), (0.69314718055994...+3.14159265358979...j)]
    """
    if method == "bilinear":
        return log_bilinear(z)
    if method == "euler":
        return _log1p(z)
    return -_log1p(-z) if method == "backward_euler" else z


def _log1p(z: Tensor) -> Tensor:
    """`log(1 + z)` as half the logarithm of the squared modulus, and the angle."""
    x, y = (z.real, z.imag) if z.is_complex() else (z, torch.zeros_like(z))
    square, gain = (1 + x).square() + y.square(), 2 * x + x.square() + y.square()
    # The square of a decay that no memory survives, but whose logarithm is finite.
    nothing = torch.finfo(x.dtype).tiny
    near = gain > -0.5
    # Each branch sees a harmless value where the other is taken: NaN times zero would be the gradient.
    log = torch.where(near, torch.log1p(torch.where(near, gain, 0)), square.clamp_min(nothing).log())
    return torch.complex(0.5 * log, torch.atan2(y, torch.where(square < nothing, 1, 1 + x)))
