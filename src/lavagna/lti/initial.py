"""Where learned continuous systems start: the spectra of S4D and the sizes of a step."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Complex, Float, Shaped
from torch import Tensor, nn

from lavagna.lti.nplr import nplr

SPECTRA = ("legs", "inv", "lin", "real")


class Rates(NamedTuple):
    """A spectrum as real numbers that may be learned freely: `Lambda = -exp(log_rate) + i frequency`."""

    log_rate: Tensor
    frequency: Tensor


def spectrum(
    kind: str, n: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None
) -> Shaped[Tensor, " modes"]:
    """The diagonal state matrix that S4D starts from, for `n` real degrees of freedom.

    - `legs`: the normal part of HiPPO-LegS (`nplr`), frequencies rising;
    - `inv`: `-1/2 + i (n/pi) (n/(2m+1) - 1)`, close to `legs` in reverse order;
    - `lin`: `-1/2 + i pi m`, the frequencies of Fourier on a window of two units of time;
    - `real`: `-(m+1)`, the eigenvalues of LegS itself, and Mamba's start.

    The complex ones are n // 2 modes, m = 0, 1, ..., of which the conjugates are implied (n even, else ValueError);
    `real` has n real modes. `dtype` is that of the real parts. Source: Gu et al. 2022, arXiv 2206.11893.

    >>> spectrum("lin", 4).imag.div(math.pi).tolist()
    [0.0, 1.0]
    """
    if kind not in SPECTRA:
        raise ValueError(f"spectrum: kind must be one of {', '.join(SPECTRA)}, but came as {kind!r}.")
    if n < 1 or (n % 2 and kind != "real"):
        raise ValueError(
            f"spectrum: {kind} needs n to be at least 1, and even for conjugate pairs, but it came as {n}."
        )
    mode = torch.arange(n if kind == "real" else n // 2, dtype=torch.float64)
    if kind == "real":
        return -(mode + 1).to(dtype=dtype, device=device)
    if kind == "legs":
        return nplr("legs", n, dtype=dtype, device=device)[0][: n // 2]
    frequency = math.pi * mode if kind == "lin" else n / math.pi * (n / (2 * mode + 1) - 1)
    Lambda = torch.complex(torch.full_like(frequency, -0.5), frequency)
    return Lambda.to(device=device, dtype=torch.complex64 if dtype == torch.float32 else torch.complex128)


def rates(Lambda: Complex[Tensor, "*axes"], *, slowest: float = 1e-4) -> Rates:
    """The two real numbers that keep a spectrum in the left half-plane; `left_half` undoes it.

    `log_rate = log(-Re Lambda)`, with rates below `slowest` raised to it, `frequency = Im Lambda`.
    """
    return Rates((-Lambda.real).clamp_min(slowest).log(), Lambda.imag.clone())


def left_half(log_rate: Float[Tensor, "*axes"], frequency: Float[Tensor, "*axes"]) -> Complex[Tensor, "*axes"]:
    """The spectrum `-exp(log_rate) + i frequency`: it decays whatever is learned.

    >>> left_half(*rates(torch.tensor([-0.5 + 2j])))
    tensor([-0.5000+2.j])
    """
    return torch.complex(-log_rate.exp(), frequency)


def reset_log_steps(log_step: nn.Parameter, *, low: float = 1e-3, high: float = 0.1) -> None:
    """Fill the logarithms of step sizes, in place: log-uniform between `low` and `high`; nothing on the meta device."""
    # The meta device has no values to draw, and torch imports its compiler to find that out: more than a second.
    if not log_step.is_meta:
        with torch.no_grad():
            log_step.uniform_(math.log(low), math.log(high))
