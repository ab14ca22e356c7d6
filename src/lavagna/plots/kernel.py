"""Kernels where learning starts: the matrix gives the filter its shape, the step its scale."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.lti import System, hippo, spectrum
from lavagna.plots.sheet import place, sheet
from lavagna.plots.theme import Theme

WIDTH, HEIGHT = 10.2, 7.9
STATE, STEPS, LAGS = 64, (0.001, 0.01, 0.1), 1000
STARTS = {
    "legs dplr": ("S4", "LegS, whole"),
    "legs": ("S4D-LegS", "its normal part"),
    "inv": ("S4D-Inv", "−½ + i N/π (N/(2n+1) − 1)"),
    "lin": ("S4D-Lin", "−½ + i π n"),
    "real": ("S4D-Real", "−(n + 1)"),
}


def system(start: str, step: float, *, seed: int = 0) -> System:
    """The system of 64 real degrees that a layer starts from, read by standard normal weights as S4's are."""
    generator = torch.Generator().manual_seed(seed)
    if start == "legs dplr":
        A, B = hippo("legs", STATE)
        reads = torch.randn(STATE, dtype=torch.float64, generator=generator)
        return System(A, B, reads, 0.0, step, "bilinear")
    modes = spectrum(start, STATE)
    reads = torch.randn(len(modes), dtype=modes.dtype, generator=generator)
    return System(modes, torch.ones_like(modes), reads, 0.0, step, "zoh")


def filters(start: str, step: float, *, seed: int = 0) -> Float[Tensor, " lags"]:
    """The filter over 1000 lags, its largest value 1; complex modes stand for conjugate pairs."""
    found = system(start, step, seed=seed).kernel(LAGS)
    found = found.real if found.is_complex() else found
    return found / found[found.abs().argmax()]


def figure(theme: Theme, *, seed: int = 0) -> Any:
    """One row an initialization, one column a step size."""
    drawn = sheet(
        WIDTH,
        HEIGHT,
        "The matrix gives a kernel its shape, the step its scale",
        f"$K_l = C\\,\\bar A^{{\\,l}}\\,\\bar B$ of {STATE} state numbers at initialization, C random, the largest"
        " value 1; lag in steps.",
    )
    for row, start in enumerate(STARTS):
        for column, step in enumerate(STEPS):
            axes = place(drawn, 2.35 + 2.6 * column, 1.5 + 1.18 * row, 2.35, 0.92)
            _panel(axes, theme, filters(start, step, seed=seed))
            if not row:
                axes.set_title(f"step {step:g}", size=11, pad=10)
            if row < len(STARTS) - 1:
                axes.set_xticklabels([])
            else:
                axes.set_xlabel("lag")
        _label(drawn, theme, start, 1.5 + 1.18 * row + 0.46)
    return drawn


def _panel(axes: Any, theme: Theme, found: Tensor) -> None:
    axes.axhline(0, color=theme.frame, linewidth=0.9, zorder=1)
    axes.plot(range(len(found)), found.tolist(), color=theme.blue, linewidth=1.1, zorder=3, clip_on=False)
    axes.set_xlim(0, LAGS)
    axes.set_ylim(-1.05, 1.05)
    axes.set_xticks([0, 500, 1000])
    # The numbers at both ends stay below their own panel.
    for label, side in zip(axes.get_xticklabels(), ("left", "center", "right"), strict=True):
        label.set_horizontalalignment(side)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def _label(drawn: Any, theme: Theme, start: str, middle: float) -> None:
    name, formula = STARTS[start]
    drawn.text(0.35 / WIDTH, 1 - (middle - 0.12) / HEIGHT, name, weight="bold", size=11, va="center")
    drawn.text(0.35 / WIDTH, 1 - (middle + 0.13) / HEIGHT, formula, color=theme.quiet, size=8.5, va="center")
