"""HiPPO: the systems whose state holds the coefficients of the past in a basis of functions."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

KINDS = ("legs", "legt", "lagt", "fout")


class Hippo(NamedTuple):
    """A continuous system `x' = A x + B u` with one input."""

    A: Float[Tensor, "n n"]
    B: Float[Tensor, " n"]


def hippo(kind: str, n: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None) -> Hippo:
    """The system whose state holds the `n` coefficients of its input's past: `x' = A x + B u`.

    - `legs`: Legendre polynomials scaled to the whole past. The operator that projects is `x' = (A x + B u) / t`
      (see `online_hippo`); frozen at a constant step it weighs the past by `e^-s`.
      `A[i, j] = -sqrt((2i+1)(2j+1))` below the diagonal, `-(i+1)` on it, `B[i] = sqrt(2i+1)`.
    - `legt`: Legendre polynomials on a sliding window, `A[i, j] = -sqrt((2i+1)(2j+1)) / 2`, times `(-1)^(i-j)` above
      the diagonal, `B[i] = sqrt(2i+1) / 2`. This is the halved one: its window is two units of time.
    - `lagt`: Laguerre functions `e^(-s/2) L_i(s)` of the age s: `A` is -1/2 on the diagonal and -1 below, `B` is 1.
    - `fout`: Fourier on a sliding window of two units of time, `A = S - B B^T` where `S` turns the pair (2i, 2i+1) by
      pi i, `B` is 1, 0, sqrt 2, 0, sqrt 2, 0, ... The second coefficient is that of `sin 0`: it stays zero.

    Computed in float64, then cast. Raises ValueError on an unknown kind or dtype, `n < 1`, and an odd `n` for `fout`.
    Sources: Gu et al. 2020, arXiv 2008.07669; Gu et al. 2022, arXiv 2206.12037.

    >>> hippo("legs", 2).A
    tensor([[-1.0000,  0.0000],
            [-1.7321, -2.0000]], dtype=torch.float64)
    """
    check("hippo", kind, n)
    if not dtype.is_floating_point:
        raise ValueError(f"hippo: dtype must be a real floating one, but came as {dtype}.")
    where = torch.get_default_device() if device is None else device
    with torch.device("cpu"):
        A, B = {"legs": _legs, "legt": _legt, "lagt": _lagt, "fout": _fout}[kind](n)
    return Hippo(A.to(device=where, dtype=dtype), B.to(device=where, dtype=dtype))


def check(call: str, kind: str, n: int) -> None:
    """Raise ValueError unless `kind` is a basis and `n` a number of functions that it can have."""
    if kind not in KINDS:
        raise ValueError(f"{call}: kind must be one of {', '.join(KINDS)}, but came as {kind!r}.")
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"{call}: n must be an int, at least 1, but came as {n!r}.")
    if kind == "fout" and n % 2:
        raise ValueError(f"{call}: fout has cosines and sines in pairs, but n came as {n}. Use {n + 1}.")


def _roots(n: int) -> Tensor:
    return torch.arange(1, 2 * n, 2, dtype=torch.float64).sqrt()


def _legs(n: int) -> tuple[Tensor, Tensor]:
    root = _roots(n)
    degree = torch.arange(1, n + 1, dtype=torch.float64)
    return torch.tril(torch.outer(-root, root), -1) - degree.diag(), root


def _legt(n: int) -> tuple[Tensor, Tensor]:
    root = _roots(n)
    sign = 1.0 - 2.0 * (torch.arange(n) % 2)
    pairs = torch.tril(torch.ones(n, n, dtype=torch.float64)) + torch.triu(torch.outer(sign, sign), 1)
    return -0.5 * torch.outer(root, root) * pairs, 0.5 * root


def _lagt(n: int) -> tuple[Tensor, Tensor]:
    one = torch.ones(n, n, dtype=torch.float64)
    return 0.5 * one[0].diag() - torch.tril(one), one[0]


def _fout(n: int) -> tuple[Tensor, Tensor]:
    turn = torch.zeros(n - 1, dtype=torch.float64)
    turn[::2] = math.pi * torch.arange(n // 2, dtype=torch.float64)
    B = torch.zeros(n, dtype=torch.float64)
    B[::2] = math.sqrt(2)
    B[0] = 1
    return turn.diag(-1) - turn.diag(1) - torch.outer(B, B), B
