"""Recall: the error of a memory against the number of pairs it was told, summed up or corrected."""

from typing import Any, NamedTuple

from lavagna.plots.sheet import place, sheet
from lavagna.plots.theme import Theme
from lavagna.reproduce.recall import CHANNELS, PUBLISHED, RULES, errors

PAIRS = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 44, 48)
QUANTITIES = ("recall", "rewritten")


class Curve(NamedTuple):
    """Mean error at each number of pairs, ours, and the published points."""

    pairs: list[int]
    error: list[float]
    published: list[tuple[int, float]]


def curves(*, trials: int = 300, seed: int = 0) -> dict[tuple[str, str], Curve]:
    """A curve for each (quantity, rule): recall of what was told, and recall of a key that was told anew."""
    found = {(rule, pairs): errors(rule, pairs, trials=trials, seed=seed) for rule in RULES for pairs in PAIRS}
    return {
        (quantity, rule): Curve(
            list(PAIRS),
            [getattr(found[rule, pairs], quantity).mean().item() for pairs in PAIRS],
            [(pairs, numbers[i]) for (told, pairs), numbers in PUBLISHED.items() if told == rule],
        )
        for i, quantity in enumerate(QUANTITIES)
        for rule in RULES
    }


def figure(theme: Theme, *, trials: int = 300, seed: int = 0) -> Any:
    """Two panels: what was told, and the key told anew."""
    drawn = sheet(
        10.2,
        4.9,
        "Look before you write: the delta rule recalls better, and rewrites exactly",
        f"Mean relative error |S k − v| / |v| of a {CHANNELS}×{CHANNELS} memory, random keys of norm 1."
        " Lines: this library. Circles: published.",
    )
    found = curves(trials=trials, seed=seed)
    panels = {
        "recall": place(drawn, 0.85, 1.55, 3.3, 2.7),
        "rewritten": place(drawn, 5.65, 1.55, 3.3, 2.7),
    }
    titles = {"recall": "Asked for everything it was told", "rewritten": "Asked for a key it was told anew"}
    for quantity, axes in panels.items():
        _panel(axes, theme, {rule: found[quantity, rule] for rule in RULES})
        axes.set_title(titles[quantity], loc="left", size=11, pad=10)
    panels["recall"].set_ylabel("relative error")
    panels["recall"].text(0.6, 1.03, "as wrong as answering 0", size=8.5, color=theme.quiet, va="bottom")
    panels["rewritten"].text(
        CHANNELS - 0.7, 0.5, "as many pairs\nas channels", size=8.5, color=theme.quiet, ha="right", va="center"
    )
    return drawn


def _panel(axes: Any, theme: Theme, found: dict[str, Curve]) -> None:
    colors = {"sum": theme.orange, "delta": theme.blue}
    labels = {"sum": "sum", "delta": "delta rule"}
    axes.axhline(1, color=theme.quiet, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.axvline(CHANNELS, color=theme.frame, linewidth=0.9)
    for rule, curve in found.items():
        axes.plot(
            curve.pairs, curve.error, color=colors[rule], linewidth=2.2, solid_capstyle="round", clip_on=False, zorder=4
        )
        axes.plot(
            *zip(*curve.published, strict=True),
            "o",
            color=colors[rule],
            markerfacecolor=theme.ground,
            markersize=7,
            markeredgewidth=1.8,
            clip_on=False,
            zorder=5,
        )
        axes.text(49, curve.error[-1], labels[rule], color=colors[rule], weight="bold", va="center")
    axes.set_xlim(0, 48)
    axes.set_ylim(0, 1.75)
    axes.set_xticks([0, 8, 16, 24, 32, 40, 48])
    axes.set_yticks([0, 0.5, 1, 1.5])
    axes.set_xlabel("pairs told")
