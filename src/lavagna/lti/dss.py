"""Diagonal state spaces: a filter of exponentials, each normalized over the positions by a softmax, or not.

A softmax over `length` positions ties the filter to that length. As a recurrence it is an ordinary diagonal system with
transition `exp(z)`, z = step Lambda, and one number a mode, `weights`, which may stand at the input, at the output, or
be shared. Modes that fade have it at the output, so that a memory holds plain sums of inputs. Modes that grow have
`weights` of the size of `exp(-length z)`, too small for float32 once `length Re z` is 87, while a memory without it
grows to its inverse: they have half of it on either side, which doubles the range.
"""

from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from lavagna.lti.exponential import expm1, phi1
from lavagna.lti.vandermonde import diagonal_kernel

METHODS = ("softmax", "exp")


class Vectors(NamedTuple):
    """What writes a diagonal system's memory and what reads it: `h_t = exp(z) h_{t-1} + write u_t`, `y = read . h`."""

    write: Shaped[Tensor, "*h n"]
    read: Shaped[Tensor, "*h n"]


class _Modes(NamedTuple):
    """Modes turned around where they grow: `weights exp(l z)` is `share exp(l z)`, or `share exp((l - last) z)`."""

    fading: Tensor
    growing: Tensor
    share: Tensor
    last: int

    @property
    def grows(self) -> Tensor:
        return self.growing.real > 0


def dss_kernel(
    Lambda: Shaped[Tensor, "*#h n"],
    C: Shaped[Tensor, "*#h n"],
    step: Shaped[Tensor, "*#h"],
    length: int,
    *,
    method: str = "softmax",
    steps: int | None = None,
    conjugates: bool = False,
) -> Shaped[Tensor, "*h steps"]:
    """The filter of a diagonal state space, `steps` long (`length` where None), normalized over `length` positions.

        softmax:  K_l = sum_n (C_n / Lambda_n) exp(l z_n) / sum over r < length of exp(r z_n)          z = step Lambda
        exp:      K_l = sum_n C_n (exp(z_n) - 1) / Lambda_n exp(l z_n)

    The second is S4D under the zero-order hold, whatever the length; the first, with `C (exp(length z) - 1)` in place
    of C, equals it. Real parts of `Lambda` may have either sign: sums count from the last position where a mode grows,
    so that no power exceeds 1 below `length`. Reciprocals are `conj(x) / (|x|^2 + eps)` with the eps of the precision,
    which keeps the filter finite where `Lambda` or the softmax's sum is 0. `conjugates` and numbers as in
    `diagonal_kernel`, in the precision of `C`. Raises ValueError on another method.

    Gupta, Gu and Berant 2022, arXiv 2203.14343.

    >>> one = torch.tensor([1.0], dtype=torch.float64)
    >>> round(dss_kernel(one, one, torch.tensor(0.1), 50).sum().item(), 12)  # a softmax sums to 1
    1.0
    """
    modes = _modes(Lambda, C, step, length, method)
    steps = length if steps is None else steps
    share = modes.share * ((steps - 1 - modes.last) * modes.growing).exp()
    # Two filters from one table of powers: the modes that fade from the front, those that grow from the back.
    both = torch.stack([share.masked_fill(modes.grows, 0), share.masked_fill(~modes.grows, 0)])
    ahead, back = diagonal_kernel(both.to(_narrow(both, C)), modes.fading, steps, conjugates=conjugates)
    return ahead + back.flip(-1)


def dss_weights(
    Lambda: Shaped[Tensor, "*#h n"],
    C: Shaped[Tensor, "*#h n"],
    step: Shaped[Tensor, "*#h"],
    length: int,
    *,
    method: str = "softmax",
) -> Shaped[Tensor, "*h n"]:
    """The numbers w for which `diagonal_kernel(w, step Lambda, length)` is `dss_kernel`; complex64 or complex128.

    Past `length` the same numbers go on as the recurrence they are. Those of growing modes vanish in float32 where
    `length Re z` is over 87: there `dss_vectors` and `dss_kernel` still hold.
    """
    modes = _modes(Lambda, C, step, length, method)
    weights = modes.share * (-modes.last * modes.growing).exp()
    return weights.to(_narrow(weights, C))


def dss_vectors(
    Lambda: Shaped[Tensor, "*#h n"],
    C: Shaped[Tensor, "*#h n"],
    step: Shaped[Tensor, "*#h"],
    length: int,
    *,
    method: str = "softmax",
) -> Vectors:
    """How to write and read a memory so that its recurrence has the filter `dss_kernel`: `write * read` is the weight.

    Modes that fade are written by 1. Those that grow have half of their weight, `exp(-(length - 1) z / 2)`, on either
    side, and are exact in float32 up to `length Re z` about 170.
    """
    modes = _modes(Lambda, C, step, length, method)
    half = (-0.5 * modes.last * modes.growing).exp()
    return Vectors(*(x.expand(modes.share.shape).to(_narrow(x, C)) for x in (half, modes.share * half)))


def _modes(Lambda: Tensor, C: Tensor, step: Tensor, length: int, method: str) -> _Modes:
    if method not in METHODS:
        raise ValueError(f"dss: method must be one of {', '.join(METHODS)}, but came as {method!r}.")
    if not isinstance(length, int) or isinstance(length, bool) or length < 1:
        raise ValueError(f"dss: length must be an int >= 1, but came as {length!r}.")
    rate, wide = step.to(torch.float64).unsqueeze(-1), _double(Lambda)
    # Part by part, because a complex product would make NaN of an infinite decay.
    z = torch.complex(rate * wide.real, rate * wide.imag) if wide.is_complex() else rate * wide
    if method == "exp":
        return _Modes(z, torch.zeros_like(z), _double(C) * rate * phi1(z), 0)
    grows = z.real > 0
    fading, growing = torch.where(grows, -z, z), torch.where(grows, z, torch.zeros_like(z))
    eps = torch.finfo(C.real.dtype if C.dtype in (torch.float64, torch.complex128) else torch.float32).eps
    return _Modes(fading, growing, _double(C) * _reciprocal(wide, eps) * _softmax(fading, length, eps), length - 1)


def _softmax(z: Tensor, length: int, eps: float) -> Tensor:
    """`1 / sum over r < length of exp(r z)`, real parts at most 0: (exp(z) - 1) / (exp(length z) - 1)."""
    if z.is_complex():
        # The powers know the angle only up to whole turns, and both differences vanish at a whole turn.
        z = torch.complex(z.real, z.imag - 2 * torch.pi * (z.imag.detach() / (2 * torch.pi)).round())
    near = (length * z).abs() < 1
    small = torch.where(near, z, torch.zeros_like(z))
    large = torch.where(near, -torch.ones_like(z), z)
    return torch.where(
        near,
        phi1(small) / (length * phi1(length * small)),
        expm1(large) * _reciprocal(expm1(length * large), eps),
    )


def _reciprocal(x: Tensor, eps: float) -> Tensor:
    return x.conj() / (x.abs().square() + eps)


def _double(x: Tensor) -> Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


def _narrow(x: Tensor, C: Tensor) -> torch.dtype:
    """The dtype of a result: in the precision of `C`, complex where `x` is."""
    dtype = torch.float64 if C.dtype in (torch.float64, torch.complex128) else torch.float32
    return torch.promote_types(dtype, torch.complex64) if x.is_complex() else dtype
