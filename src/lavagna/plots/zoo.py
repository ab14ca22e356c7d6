"""The ladder of memories: for each transition, what survives of yesterday's memory."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from lavagna.algebra.dense import matrix
from lavagna.algebra.transition import (
    Transition,
    diagonal,
    dplr,
    gated_householder,
    householder,
    identity,
    scalar,
)
from lavagna.plots.sheet import place, sheet
from lavagna.plots.theme import Theme

CHANNELS = 8
# A key that leans on a few channels, so that the erased entry shows as a pattern and not as a haze.
KEY = (0.1, 0.75, 0.15, 0.35, 0.8, 0.1, 0.6, 0.2)
GATE = 0.65
GATES = (0.99, 0.5, 0.9, 0.2, 0.97, 0.35, 0.8, 0.6)
STRENGTHS = (0.9, 0.7, 0.9, 0.8, 0.95, 0.6, 0.9, 0.75)


class Rung(NamedTuple):
    """One memory of the ladder: who uses it, its transition as a formula and as a value, and what that does."""

    models: str
    formula: str
    does: str
    transition: Transition


def ladder() -> list[Rung]:
    """The six transitions: above without a correction, below with one; from left to right a finer gate."""
    key = normalize(torch.tensor(KEY, dtype=torch.float64), dim=0)[None, None, None]
    one = torch.ones_like(key[..., :1])
    fade, fades = ((torch.tensor(x, dtype=torch.float64) * one).log() for x in (GATE, GATES))
    strengths = torch.tensor(STRENGTHS, dtype=torch.float64) * one
    return [
        Rung("linear attention", r"$A_t = I$", "keeps everything", identity()),
        Rung("RetNet, Mamba-2", r"$A_t = \alpha_t\, I$", "fades all alike", scalar(fade)),
        Rung("GLA, RWKV-6", r"$A_t = \mathrm{Diag}(\alpha_t)$", "fades channel by channel", diagonal(fades)),
        Rung("DeltaNet", r"$A_t = I - \beta_t k_t k_t^\top$", "erases one entry", householder(key, one)),
        Rung(
            "Gated DeltaNet",
            r"$A_t = \alpha_t\,(I - \beta_t k_t k_t^\top)$",
            "fades all, erases one entry",
            gated_householder(fade, key, one),
        ),
        Rung(
            "RWKV-7",
            r"$A_t = \mathrm{Diag}(w_t) - \hat\kappa_t (a_t \odot \hat\kappa_t)^\top$",
            "fades by channel, erases by channel",
            dplr(fades, -key, strengths * key),
        ),
    ]


def survives(a: Transition) -> Float[Tensor, "k k"]:
    """`|A_t|`: on the diagonal what each channel keeps of itself, in row i of column j what j takes from i."""
    return matrix(a, CHANNELS, 0, 0, 0).abs()


def figure(theme: Theme) -> Any:
    """Six squares on two steps of the ladder."""
    drawn = sheet(
        10.2,
        8.15,
        "The ladder of memories: what survives of yesterday",
        "$|A_t|$ in $S_t = S_{t-1}A_t + v_t k_t^\\top$. Column by column: on the diagonal what a channel keeps of"
        " itself, off it what it takes from the others.",
    )
    for column, gate in enumerate(("no gate", "one gate", "a gate for each channel")):
        drawn.text((1.9 + 3.0 * column) / 10.2, 1 - 1.2 / 8.15, gate, ha="center", color=theme.quiet)
    for row, correction in enumerate(("adds", "corrects, then adds")):
        drawn.text(
            0.5 / 10.2,
            1 - (2.5 + 3.5 * row) / 8.15,
            correction,
            rotation=90,
            va="center",
            ha="center",
            color=theme.quiet,
        )
    mesh = None
    for place_in_ladder, rung in enumerate(ladder()):
        row, column = divmod(place_in_ladder, 3)
        mesh = _square(drawn, theme, rung, left=0.75 + 3.0 * column, top=1.35 + 3.5 * row)
    bar = place(drawn, 9.45, 1.35, 0.14, 2.3)
    scale = drawn.colorbar(mesh, cax=bar, ticks=[0, 0.5, 1])
    scale.outline.set_visible(False)
    bar.set_title("$|A_t|$", size=9.5, pad=8)
    return drawn


def _square(drawn: Any, theme: Theme, rung: Rung, *, left: float, top: float) -> Any:
    axes = place(drawn, left, top, 2.3, 2.3)
    mesh = axes.pcolormesh(
        survives(rung.transition).numpy(), cmap=theme.strength(), vmin=0, vmax=1, edgecolors=theme.frame, linewidth=0.6
    )
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    for line, (text, style) in enumerate(
        (
            (rung.models, {"weight": "bold", "size": 11}),
            (rung.formula, {"size": 10}),
            (rung.does, {"color": theme.quiet, "size": 9.5}),
        )
    ):
        axes.text(0.5, -0.05 - 0.105 * line, text, transform=axes.transAxes, ha="center", va="top", **style)
    return mesh
