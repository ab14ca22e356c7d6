"""Learned decays with a rate and a step size: their initial values and the decay they make."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.modules.precision import wide
from lavagna.modules.weight_decay import exempt

# The logarithm of a rate at which nothing is left after a step, and that still is a float32.
FASTEST = 80.0


def step_size(x: Float[Tensor, "*axes h"], bias: Float[Tensor, " h"]) -> Float[Tensor, "*axes h"]:
    """How long a step lasts, `softplus(x + bias)`, float32 at least."""
    return F.softplus(wide(x) + wide(bias))


def rate(log: Float[Tensor, " h"]) -> Float[Tensor, "1 1 h 1"]:
    """The log-decay of a step of length one, `-exp(log)`, float32 at least, shaped as a constant decay per head.

    Held at a logarithm of 80, as in `log_decay_of`.
    """
    return log_decay_of(log)[None, None, :, None]


def log_decay_of(log_rate: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """The log-decay of a step at a rate that is given by its logarithm, `-exp(log_rate)`, float32 at least.

    Held at a logarithm of 80: what decays faster is gone all the same, and gradients stay finite.
    """
    return -wide(log_rate).clamp_max(FASTEST).exp()


def reset_rates(log: nn.Parameter, *, low: float, high: float) -> None:
    """Rates exp(log) uniform between `low` and `high`; exempt from weight decay."""
    # The meta device has no values to draw, and torch imports its compiler to find that out: more than a second.
    if not log.is_meta:
        with torch.no_grad():
            log.uniform_(low, high).log_()
    exempt(log)


def reset_steps(bias: nn.Parameter, *, low: float = 1e-3, high: float = 0.1) -> None:
    """Step sizes softplus(bias) log-uniform between `low` and `high`; exempt from weight decay.

    The inverse of `s = softplus(b)` is `b = s + log(-expm1(-s))`.
    """
    if not bias.is_meta:
        with torch.no_grad():
            size = bias.uniform_(math.log(low), math.log(high)).exp()
            bias.copy_(size + torch.log(-torch.expm1(-size)))
    exempt(bias)
