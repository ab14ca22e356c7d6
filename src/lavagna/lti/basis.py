"""The functions in which HiPPO's coefficients tell the past."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.lti.hippo import check


def span(kind: str, n: int) -> float:
    """How many units of a system's own time the times from 0 to 1 stand for, where it slides along the past.

    The windows of `legt` and `fout` are 2 long. `lagt` has no window: n of its functions see about 4n far, and half of
    that in detail. `legs` stretches with the past, and has no unit.
    """
    return 2.0 * n if kind == "lagt" else 2.0


def basis(kind: str, n: int, times: Float[Tensor, " m"]) -> Float[Tensor, "m n"]:
    """The n functions of a HiPPO basis at `times`, from 0, the oldest of what is covered, to 1, now.

    - `legs`, `legt`: `sqrt(2i+1) P_i(2v - 1)`, with the whole past or the last window as 0 <= v <= 1;
    - `fout`: 1, 0, `sqrt 2 cos(pi i s)`, `sqrt 2 sin(pi i s)`, ... for the age `s = 2 (1 - v)`;
    - `lagt`: `e^(-s/2) L_i(s)` for the age `s = 2n (1 - v)`, in the system's own units of time.

    They are orthonormal, the first three for the mean over v. Computed in float64, then cast to the dtype of `times`.

    >>> basis("legs", 3, torch.tensor([1.0])).square()
    tensor([[1., 3., 5.]])
    """
    check("basis", kind, n)
    v = times.double()
    functions = {"lagt": _laguerre, "fout": _fourier}.get(kind, _legendre)
    return functions(v, n).to(times.dtype)


def _legendre(v: Tensor, n: int) -> Tensor:
    x = 2 * v - 1
    rows = _three_terms(torch.ones_like(x), n, lambda k, now, before: ((2 * k + 1) * x * now - k * before) / (k + 1))
    return rows * torch.arange(1, 2 * n, 2, dtype=v.dtype, device=v.device).sqrt()


def _laguerre(v: Tensor, n: int) -> Tensor:
    s = span("lagt", n) * (1 - v)
    # Half of the decay goes into the recurrence and half after it: the polynomials alone would overflow.
    half = (-0.25 * s).exp()
    rows = _three_terms(half, n, lambda k, now, before: ((2 * k + 1 - s) * now - k * before) / (k + 1))
    return rows * half[:, None]


def _fourier(v: Tensor, n: int) -> Tensor:
    turns = math.pi * span("fout", n) * (1 - v)[:, None] * torch.arange(n // 2, dtype=v.dtype, device=v.device)
    waves = math.sqrt(2) * torch.stack([turns.cos(), turns.sin()], -1).flatten(-2)
    return torch.cat([torch.ones_like(waves[:, :1]), waves[:, 1:]], -1)


def _three_terms(first: Tensor, n: int, following: Callable[[int, Tensor, Tensor], Tensor]) -> Tensor:
    """The columns of a recurrence in three terms, from the one of degree 0."""
    columns, before = [first], torch.zeros_like(first)
    for k in range(n - 1):
        columns.append(following(k, columns[-1], before))
        before = columns[-2]
    return torch.stack(columns, -1)
