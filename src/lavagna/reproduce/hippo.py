"""HiPPO: a thousand samples told again from 64 numbers, in every basis."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.lti import hippo, nplr, online_hippo, reconstruct
from lavagna.reproduce.row import Row, row, unprinted

TITLE = (
    "64 coefficients kept online tell 1000 samples again; LegS does not care how long the past is, and its normal part"
    " lies on the line Re = -1/2, where the eigenvalues of its matrix do not."
)
SOURCE = "Gu et al. 2020, arXiv 2008.07669; theorem 1 of S4 (Gu, Goel, Ré 2022, arXiv 2111.00396)."

DEGREES = 64
LENGTH = 1000
SIGNALS = 20
HARMONICS = 7
PUBLISHED = 2.4e-2
# The reference has a number for LegS alone. A window adds the error of its sharp end, Laguerre's functions that of the
# ages they see less well: those limits are this library's own.
AT_MOST = {"legs": 2.5e-2, "legt": 3.5e-2, "lagt": 6e-2, "fout": 6e-2}


def middles(length: int) -> Float[Tensor, " length"]:
    """Where the samples of a signal lie between 0 and 1."""
    return (torch.arange(length, dtype=torch.float64) + 0.5) / length


def signals(count: int, times: Float[Tensor, " t"], *, seed: int = 0) -> Float[Tensor, "count t"]:
    """Sums of 7 harmonics, `sum of a_k sin(2 pi k v + phase_k)`, amplitudes normal and phases uniform."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.randn(count, HARMONICS, 1, generator=generator, dtype=torch.float64)
    phase = 2 * math.pi * torch.rand(count, HARMONICS, 1, generator=generator, dtype=torch.float64)
    turns = 2 * math.pi * (torch.arange(1, HARMONICS + 1)[:, None] * times.cpu())
    return (size * torch.sin(turns + phase)).sum(1).to(times.device)


def error(kind: str, f: Float[Tensor, "count t"], *, method: str = "bilinear") -> Float[Tensor, " count"]:
    """The relative L2 error of each signal told again from its last coefficients."""
    told = reconstruct(online_hippo(f, DEGREES, kind=kind, method=method)[:, -1], middles(f.shape[1]), kind=kind)
    return (told - f).norm(dim=-1) / f.norm(dim=-1)


def moved(f: Float[Tensor, "count t"]) -> Float[Tensor, " count"]:
    """How far LegS' memory moves, relative to its norm, where each sample is repeated: the same past, twice as long."""
    short, long = (online_hippo(x, DEGREES)[:, -1] for x in (f, f.repeat_interleave(2, -1)))
    return (long - short).norm(dim=-1) / short.norm(dim=-1)


def rows(*, seed: int = 0) -> list[Row]:
    """Errors in the median over 20 signals drawn with `seed`; the rest is not random."""
    f = signals(SIGNALS, middles(LENGTH), seed=seed)
    out = []
    for kind, most in AT_MOST.items():
        ours = error(kind, f).median().item()
        published = PUBLISHED if kind == "legs" else None
        out.append(Row("hippo", f"{kind}: median relative error (≤{most:g})", published, ours, ours <= most))
    stays = moved(f).median().item()
    A, _ = hippo("legs", 256)
    Lambda, P, _, V = nplr("legs", 256)
    residual = (V @ (Lambda.diag() - P.mH @ P) @ V.mH - A).abs().max().item()
    return [
        *out,
        unprinted("hippo", "legs: how far repeating every sample moves the memory", 0, stays, within=0.01),
        unprinted(
            "hippo", "legs: largest difference of A from normal minus rank 1, n = 256", 0, residual, within=1e-10
        ),
        row("hippo", "normal part: real part of its eigenvalues", -0.5, Lambda.real.mean().item(), within=1e-12),
        unprinted("hippo", "normal part: spread of their real parts", 0, Lambda.real.std().item(), within=1e-12),
        row("hippo", "matrix: its last eigenvalue, n = 256", -256, A.diagonal().min().item(), within=1e-12),
    ]
