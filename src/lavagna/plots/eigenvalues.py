"""Eigenvalues before and after: those of each HiPPO matrix, and those of the normal part that S4 and S4D work with."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Complex
from torch import Tensor

from lavagna.lti import hippo, nplr, spectrum
from lavagna.lti.hippo import KINDS
from lavagna.plots.sheet import place, sheet
from lavagna.plots.theme import Theme

SIZE = 16
DEGREES = 64
NAMES = {"legs": "LegS", "legt": "LegT", "lagt": "LagT", "fout": "FouT"}
# Apart from where the imaginary axis crosses zero it is logarithmic: LegS' frequencies grow with the square of n.
LINEAR = 1.0


class Spectra(NamedTuple):
    """Eigenvalues of a HiPPO matrix, and of what is left when its low-rank correction is set aside."""

    matrix: Complex[Tensor, " n"]
    normal: Complex[Tensor, " n"]


def spectra(n: int = SIZE) -> dict[str, Spectra]:
    """Both sets for each basis. LegS and LagT are triangular: their eigenvalues are read off the diagonal."""
    out = {}
    for kind in KINDS:
        A, _ = hippo(kind, n)
        triangular = not A.triu(1).any()
        own = A.diagonal().to(torch.complex128) if triangular else torch.linalg.eigvals(A)
        out[kind] = Spectra(own, nplr(kind, n).Lambda)
    return out


def figure(theme: Theme) -> Any:
    """Four bases in the complex plane, and the frequencies that S4D starts from."""
    drawn = sheet(
        10.2,
        5.0,
        "The vertical line belongs to the normal part, not to the matrix",
        f"Circles: eigenvalues of HiPPO's matrix, n = {SIZE}. Dots: those of its normal part, which has orthonormal"
        " eigenvectors.",
    )
    for column, (kind, found) in enumerate(spectra().items()):
        axes = place(drawn, 0.75 + 1.55 * column, 1.45, 1.35, 2.8)
        _plane(axes, theme, found, first=column == 0)
        axes.set_title(NAMES[kind], loc="left", size=11, pad=10)
        if kind == "lagt":
            axes.text(-2.2, 0, f"all {SIZE}", color=theme.orange, size=8.5, ha="right", va="center")
    _starts(place(drawn, 7.75, 1.45, 1.7, 2.8), theme)
    return drawn


def _plane(axes: Any, theme: Theme, found: Spectra, *, first: bool) -> None:
    axes.axvline(0, color=theme.frame, linewidth=0.9, zorder=0)
    axes.axhline(0, color=theme.frame, linewidth=0.9, zorder=0)
    axes.plot(found.normal.real, found.normal.imag, ".", color=theme.blue, markersize=7, zorder=4)
    axes.plot(
        found.matrix.real,
        found.matrix.imag,
        "o",
        color=theme.orange,
        markerfacecolor="none",
        markersize=6,
        markeredgewidth=1.4,
        zorder=3,
    )
    axes.set_yscale("symlog", linthresh=LINEAR)
    axes.set_ylim(-200, 200)
    axes.set_yticks([-100, -10, -1, 0, 1, 10, 100] if first else [])
    axes.set_yticklabels(["−100", "−10", "−1", "0", "1", "10", "100"] if first else [])
    axes.minorticks_off()
    axes.set_xlim(-17.5, 1.5)
    axes.set_xticks([-16, -8, 0])
    axes.set_xlabel("Re")
    if first:
        axes.set_ylabel("Im", labelpad=0)
    else:
        axes.spines["left"].set_visible(False)


def _starts(axes: Any, theme: Theme) -> None:
    """Frequencies of S4D's starting points, fastest first, on two logarithmic axes."""
    modes = torch.arange(1, DEGREES // 2 + 1)
    for kind, style, color in (("legs", ".", theme.blue), ("inv", "-", theme.orange), ("lin", "-", theme.quiet)):
        frequency = spectrum(kind, DEGREES).imag.sort(descending=True).values
        axes.plot(modes, frequency, style, color=color, linewidth=1.6, markersize=6, zorder=4 if style == "." else 3)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlim(0.9, 40)
    axes.set_ylim(0.1, 3000)
    axes.set_xticks([1, 4, 16], ["1", "4", "16"])
    axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1000"])
    axes.minorticks_off()
    axes.set_ylabel("Im", labelpad=0)
    axes.set_xlabel("mode, fastest first")
    axes.set_title("Where S4D starts", loc="left", size=11, pad=10)
    for y, name, color in ((1600, "LegS", theme.blue), (600, "Inv", theme.orange), (37, "Lin", theme.quiet)):
        x = 1.2 if name == "Lin" else 2.2
        axes.text(x, y, name, color=color, size=9.5, weight="bold", va="center")
    axes.text(1.2, 0.22, "Real: none", color=theme.quiet, size=8.5, va="center")
