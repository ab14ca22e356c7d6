"""Marks that several drawings use: an arrow, and a number in a ring."""

from typing import Any

from lavagna.plots.theme import Theme


def arrow(axes: Any, theme: Theme, start: tuple[float, float], end: tuple[float, float], *, color: str = "") -> None:
    """An arrow between two points of the axes, quiet unless a color is given."""
    style = {
        "arrowstyle": "-|>",
        "color": color or theme.quiet,
        "linewidth": 1.2,
        "shrinkA": 0,
        "shrinkB": 0,
        "mutation_scale": 11,
    }
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def ring(axes: Any, theme: Theme, x: float, y: float, number: float) -> None:
    """A number in a ring: what is held at one step."""
    axes.plot([x], [y], "o", markersize=33, markerfacecolor=theme.ground, markeredgecolor=theme.blue, markeredgewidth=2)
    shown = f"{number:g}"
    axes.text(x, y, shown, ha="center", va="center", size=13 - 3 * (len(shown) > 3), weight="bold", color=theme.blue)
