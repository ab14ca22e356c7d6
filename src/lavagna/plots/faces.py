"""The two faces of one machine: a state that is updated step by step, and one filter that slides over the signal."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.plots.marks import arrow, ring
from lavagna.plots.sheet import place, sheet
from lavagna.plots.theme import Theme
from lavagna.reproduce.faces import POURED, step_by_step, tub

WIDTH, HEIGHT = 10.2, 6.75
# One row a step; a bar of 1 is as high as HIGH.
TOP, ROW, HIGH, SLOT = 0.75, 1.12, 0.62, 0.86
FRACTIONS = {1.0: "1", 0.5: "½", 0.25: "¼", 0.125: "⅛"}


def weights(steps: int) -> Float[Tensor, "steps steps"]:
    """What each input counts at each step: row t holds the filter, turned around and pushed to t."""
    filters = tub().kernel(steps)
    rows = [torch.cat([filters[: t + 1].flip(0), filters.new_zeros(steps - t - 1)]) for t in range(steps)]
    return torch.stack(rows)


def figure(theme: Theme) -> Any:
    """Two panels whose rows are the same four steps, and the same answers between them."""
    poured = torch.tensor(POURED, dtype=torch.float64)
    told = ", ".join(f"{x:g}" for x in POURED)
    drawn = sheet(
        WIDTH,
        HEIGHT,
        "Two faces of one machine: a state that is updated, a filter that slides",
        f"A tub loses half of its water in a minute; the tap gives {told} liters. The level after each minute, told"
        " twice.",
    )
    state = _panel(drawn, 0.4, 3.4, "step by step: the recurrence")
    _caption(state, theme, 0.0, "one number is kept, whatever the length:\nthe way to generate")
    _recurrence(state, theme, poured)
    both = _panel(drawn, 3.85, 0.7, "")
    for t in range(len(POURED)):
        both.text(0.35, TOP + ROW * (t + 0.5), "=", ha="center", va="center", size=15, color=theme.quiet)
    slides = _panel(drawn, 4.6, 5.4, "all at once: the convolution")
    _caption(slides, theme, 0.0, "one filter, 1 · ½ · ¼ · ⅛, is known before the signal comes:\nthe way to train")
    _filter(slides, theme, poured)
    return drawn


def _panel(drawn: Any, left: float, width: float, name: str) -> Any:
    """Axes in inches, y downwards, with a name above."""
    height = TOP + ROW * len(POURED) + 0.6
    axes = place(drawn, left, 0.95, width, height)
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    axes.text(0, 0.32, name, weight="bold", size=12, va="center")
    return axes


def _caption(axes: Any, theme: Theme, left: float, does: str) -> None:
    axes.text(left, TOP + ROW * len(POURED) + 0.1, does, color=theme.quiet, size=9, va="top", linespacing=1.3)


def _recurrence(axes: Any, theme: Theme, poured: Tensor) -> None:
    for t, (entered, level) in enumerate(zip(poured.tolist(), step_by_step(tub(), poured).tolist(), strict=True)):
        y = TOP + ROW * (t + 0.5)
        axes.text(0.5, y, f"{entered:g}", ha="center", va="center", size=12)
        arrow(axes, theme, (0.75, y), (1.6, y))
        axes.text(1.15, y - 0.15, "+", ha="center", va="center", color=theme.quiet)
        ring(axes, theme, 2.05, y, level)
        if t:
            arrow(axes, theme, (2.05, y - ROW + 0.3), (2.05, y - 0.3))
            axes.text(2.2, y - ROW / 2, "× ½", ha="left", va="center", size=9.5, color=theme.quiet)


def _filter(axes: Any, theme: Theme, poured: Tensor) -> None:
    levels = tub().convolve(poured[None])[0].tolist()
    for t, (counts, level) in enumerate(zip(weights(len(poured)).tolist(), levels, strict=True)):
        ground = TOP + ROW * (t + 0.5) + 0.27
        axes.plot([0, SLOT * len(counts)], [ground, ground], color=theme.frame, linewidth=1.2, zorder=1)
        for j, count in enumerate(counts[: t + 1]):
            bar = SLOT * (j + 0.5)
            axes.bar(
                bar, -HIGH * count, SLOT * 0.62, bottom=ground, color=theme.strength()(0.25 + 0.5 * count), zorder=2
            )
            axes.text(bar, ground + 0.15, f"{FRACTIONS[count]} · {poured[j]:g}", ha="center", va="center", size=9.5)
            if j:
                axes.text(bar - SLOT / 2, ground + 0.15, "+", ha="center", va="center", size=9.5, color=theme.quiet)
        axes.text(4.0, ground - 0.27, "=", ha="center", va="center", size=11, color=theme.quiet)
        axes.text(4.55, ground - 0.27, f"{level:g}", ha="center", va="center", size=13, weight="bold", color=theme.blue)
