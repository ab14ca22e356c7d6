"""The three ways of one sum side by side: the triangle, the single number, the blocks with their carry."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.plots.marks import arrow, ring
from lavagna.plots.sheet import place, sheet
from lavagna.plots.theme import Theme
from lavagna.reproduce.forms import DECAY, VALUES, totals

CELL = 0.8
# Rows stand a little apart, so that the carry passes between them.
ROW = 1.22
TOP = 0.75
FRACTIONS = {1.0: "", 0.5: "½ · ", 0.25: "¼ · "}


class Block(NamedTuple):
    """A block of the chunkwise form: its values' triangle, what is left of the carry at each step, and the totals."""

    first: int
    shares: Float[Tensor, "c c"]
    carry: Float[Tensor, " c"]
    totals: Float[Tensor, " c"]


def shares(values: Float[Tensor, " t"]) -> Float[Tensor, "t t"]:
    """What each value, told alone, adds to the total of each step: row t, column j is `decay^(t-j) x_j`."""
    return torch.stack([totals(alone, DECAY, form="parallel") for alone in values.diag()], 1)


def blocks(values: Float[Tensor, " t"], chunk: int) -> list[Block]:
    """The same sum block by block: only the last total of a block passes on to the next."""
    out, carry = [], 0.0
    for first in range(0, len(values), chunk):
        own = values[first : first + chunk]
        faded = totals(torch.zeros_like(own), DECAY, start=carry)
        sums = totals(own, DECAY, start=carry)
        out.append(Block(first, shares(own), faded, sums))
        carry = sums[-1].item()
    return out


def figure(theme: Theme) -> Any:
    """Three panels whose rows are the same three steps."""
    values = torch.tensor(VALUES, dtype=torch.float64)
    told = ", ".join(f"{value:g}" for value in VALUES)
    drawn = sheet(
        10.2,
        5.2,
        "Three ways of one sum: the same totals, another shape of work",
        f"The values {told}, one a row; at each step, what is already there is halved.",
    )
    _triangle(
        _panel(drawn, theme, 0.4, "parallel", "every pair at once: a triangle that\ngrows with the length squared"),
        theme,
        values,
    )
    _number(_panel(drawn, theme, 4.35, "recurrent", "one number at a time:\nfade, then add"), theme, values)
    _blocks(
        _panel(drawn, theme, 6.95, "chunkwise", "a triangle inside each block of two,\na carry between blocks"),
        theme,
        values,
    )
    return drawn


def _panel(drawn: Any, theme: Theme, left: float, name: str, does: str) -> Any:
    """Axes in units of one cell, y downwards, with a name above and a sentence below."""
    width, height = 3.0, 4.9 * CELL
    axes = place(drawn, left, 1.05, width, height)
    axes.set_xlim(0, width / CELL)
    axes.set_ylim(4.9, 0)
    axes.set_axis_off()
    axes.text(0, 0.32, name, weight="bold", size=12, va="center")
    axes.text(0, 4.4, does, color=theme.quiet, size=9, va="top", linespacing=1.3)
    return axes


def _cell(axes: Any, theme: Theme, x: float, y: float, text: str, strength: float, *, color: str | None = None) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (x + 0.05, y + 0.05),
            0.9,
            0.9,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=color or theme.strength()(0.62 * strength),
            edgecolor="none",
        )
    )
    axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", size=11)


def _total(axes: Any, theme: Theme, x: float, y: float, total: float) -> None:
    axes.text(x, y + 0.5, "=", ha="center", va="center", size=11, color=theme.quiet)
    axes.text(x + 0.42, y + 0.5, f"{total:g}", ha="center", va="center", size=13, weight="bold", color=theme.blue)


def _triangle(axes: Any, theme: Theme, values: Tensor) -> None:
    parts, sums = shares(values), totals(values, DECAY, form="parallel")
    for t, total in enumerate(sums.tolist()):
        for j in range(t + 1):
            weight = (parts[t, j] / values[j]).item()
            _cell(axes, theme, float(j), TOP + ROW * t, f"{FRACTIONS[weight]}{values[j]:g}", weight)
        _total(axes, theme, 3.25, TOP + ROW * t, total)


def _number(axes: Any, theme: Theme, values: Tensor) -> None:
    for t, (value, total) in enumerate(
        zip(values.tolist(), totals(values, DECAY, form="recurrent").tolist(), strict=True)
    ):
        y = TOP + ROW * t + 0.5
        axes.text(0.25, y, f"{value:g}", ha="center", va="center", size=11)
        arrow(axes, theme, (0.5, y), (0.98, y))
        axes.text(0.74, y - 0.17, "+", ha="center", va="center", color=theme.quiet)
        ring(axes, theme, 1.4, y, total)
        if t:
            arrow(axes, theme, (1.4, y - ROW + 0.36), (1.4, y - 0.36))
            axes.text(1.56, y - ROW / 2, "× ½", ha="left", va="center", size=9.5, color=theme.quiet)


def _blocks(axes: Any, theme: Theme, values: Tensor) -> None:
    for block in blocks(values, 2):
        inside = block.shares.shape[0]
        for i in range(inside):
            y = TOP + ROW * (block.first + i)
            if block.first:
                _cell(axes, theme, 0.0, y, f"½ · {block.carry[i] / DECAY:g}", 0.0, color=theme.orange_tint)
            for j in range(i + 1):
                value = values[block.first + j]
                weight = (block.shares[i, j] / value).item()
                _cell(axes, theme, float(j + bool(block.first)), y, f"{FRACTIONS[weight]}{value:g}", weight)
            _total(axes, theme, 2.25, y, block.totals[i].item())
            if block.first and not i:
                _carry(axes, theme, y)


def _carry(axes: Any, theme: Theme, y: float) -> None:
    """From the last total of one block, between the rows, to the first cell of the next, whose top is at `y`."""
    above, between = y - ROW + 0.5, y - (ROW - 1) / 2
    axes.plot(
        [3.02, 3.3, 3.3, 0.5],
        [above, above, between, between],
        color=theme.orange,
        linewidth=1.6,
        solid_joinstyle="round",
    )
    arrow(axes, theme, (0.5, between), (0.5, y + 0.07), color=theme.orange)
