"""HiPPO's matrices as a normal matrix minus one of low rank, in the eigenvectors of the normal one."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Complex
from torch import Tensor

from lavagna.lti.hippo import check, hippo


class NPLR(NamedTuple):
    """`A = V (diag(Lambda) - P^H P) V^H` with unitary `V`; `P` (r n) and `B` (n) are in the basis of `V`'s columns."""

    Lambda: Complex[Tensor, " n"]
    P: Complex[Tensor, "r n"]
    B: Complex[Tensor, " n"]
    V: Complex[Tensor, "n n"]


def nplr(kind: str, n: int, *, dtype: torch.dtype = torch.float64, device: torch.device | str | None = None) -> NPLR:
    """A HiPPO system in the eigenvectors of its normal part: `A = V (diag(Lambda) - P^H P) V^H`, `B` becomes `V^H B`.

    What is normal is `A + P^T P = c I + skew`, with `c` = -1/2 for `legs` and 0 for the others: the real part of every
    eigenvalue is `c`, exactly. They are eigenvalues of the normal part, not of `A`.
    The rank r is 2 for `legt` and 1 for the others.

    Order: the n // 2 eigenvalues with imaginary part >= 0, rising; then their conjugates in the same order, with
    exactly conjugate columns of `V`, `P` and entries of `B`; for odd n the real one comes last, with a real column. So
    the first n // 2 entries say all for even n, and `2 Re` of their sum is the sum of all.

    Computed in complex128; `dtype` is that of the real parts, float32 or float64. O(n^3). ValueError as for `hippo`.
    Source: Gu, Goel, Ré 2022, arXiv 2111.00396, theorem 1; `fout` from Gu et al. 2022, arXiv 2206.12037.

    >>> Lambda, P, B, V = nplr("legs", 4)
    >>> A = V @ (Lambda.diag() - P.mH @ P) @ V.mH
    >>> torch.allclose(A.real, hippo("legs", 4)[0]) and bool((A.imag.abs() < 1e-12).all())
    True
    """
    check("nplr", kind, n)
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"nplr: dtype, of the real parts, must be torch.float32 or float64, but came as {dtype}.")
    where = torch.get_default_device() if device is None else device
    # On the CPU wherever the result goes: eigenvectors have a free phase, which each device's solver chooses otherwise.
    with torch.device("cpu"):
        parts = _parts(kind, n)
    wanted = torch.complex64 if dtype == torch.float32 else torch.complex128
    return NPLR(*(part.to(device=where, dtype=wanted) for part in parts))


def _parts(kind: str, n: int) -> NPLR:
    """All of it in complex128."""
    A, B = hippo(kind, n, device="cpu")
    low = _low_rank(kind, B)
    center = -0.5 if kind == "legs" else 0.0
    frequency, half, rest = _planes(n) if kind == "fout" else _turns(A + low.mT @ low)
    imaginary = torch.cat([frequency, -frequency, frequency.new_zeros(n % 2)])
    Lambda = torch.complex(torch.full_like(imaginary, center), imaginary)
    V = _conjugates(half, rest)
    P = _conjugates(low.to(V) @ half, low.to(V) @ rest)
    # One half is computed and the other copied: a product with all of V would round conjugates differently.
    in_basis = _conjugates((half.mH @ B.to(V))[None], (rest.mH @ B.to(V))[None])[0]
    return NPLR(Lambda, P, in_basis, V)


def _low_rank(kind: str, B: Tensor) -> Tensor:
    """The real P (r n) that makes `A + P^T P` normal."""
    if kind == "fout":
        return B[None]
    if kind != "legt":
        return math.sqrt(0.5) * B[None]
    even = torch.arange(len(B)) % 2 == 0
    return math.sqrt(2) * torch.stack([torch.where(even, 0, B), torch.where(even, B, 0)])


def _turns(normal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The positive frequencies of a matrix `c I + skew`, rising, their eigenvectors, and the real one if n is odd."""
    n = len(normal)
    skew = 0.5 * (normal - normal.mT)
    frequency, vectors = torch.linalg.eigh(torch.complex(torch.zeros_like(skew), -skew))
    half, rest = vectors[:, n - n // 2 :], vectors[:, n // 2 : n - n // 2]
    if n % 2:
        # Any phase makes an eigenvector; the one that turns its largest entry real makes the null vector real.
        rest = rest * rest[rest.abs().argmax()].conj().sgn()
        rest = torch.complex(rest.real, torch.zeros_like(rest.real))
    # Eigenvectors of a frequency and its negative are orthogonal only to rounding over their distance: polish once.
    both = _conjugates(half, rest)
    half, rest = (1.5 * part - 0.5 * both @ (both.mH @ part) for part in (half, rest))
    return frequency[n - n // 2 :], half, torch.complex(rest.real, torch.zeros_like(rest.real))


def _planes(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same for `fout`, in closed form: cosine i and sine i turn by pi i, those of i = 0 not at all."""
    modes = torch.arange(n // 2)
    half = torch.zeros(n, n // 2, dtype=torch.complex128)
    half.real[2 * modes, modes] = math.sqrt(0.5)
    half.imag[2 * modes + 1, modes] = -math.sqrt(0.5)
    return math.pi * modes.double(), half, half[:, :0]


def _conjugates(half: Tensor, rest: Tensor) -> Tensor:
    """Columns, their conjugates, and the columns that are their own."""
    return torch.cat([half, half.conj().resolve_conj(), rest], -1)
