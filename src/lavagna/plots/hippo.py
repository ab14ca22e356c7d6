"""HiPPO's memory filling up while a signal passes: the same few numbers tell a longer and longer past."""

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.lti import online_hippo, reconstruct
from lavagna.plots.sheet import place, sheet
from lavagna.plots.theme import Theme
from lavagna.reproduce.hippo import middles

DEGREES = 32
LENGTH = 1200
MOMENTS = (200, 600, 1200)
TONES = 20


class Telling(NamedTuple):
    """What the memory tells at a moment: the past so far, the memory's version of it, and the relative error."""

    moment: int
    past: Float[Tensor, " moment"]
    told: Float[Tensor, " moment"]
    error: float


def signal(length: int = LENGTH, *, seed: int = 0) -> Float[Tensor, " length"]:
    """A signal of 20 harmonics and root mean square 1: a longer past of it holds more turns."""
    generator = torch.Generator().manual_seed(seed)
    size, phase = torch.rand(2, TONES, 1, generator=generator, dtype=torch.float64)
    turns = 2 * math.pi * (torch.arange(1, TONES + 1)[:, None] * middles(length) + phase)
    f = ((0.5 + size) * turns.sin()).sum(0)
    return f / f.square().mean().sqrt()


def tellings(f: Float[Tensor, " t"], memory: Float[Tensor, "t n"]) -> list[Telling]:
    """The past as LegS tells it at each of the moments."""
    out = []
    for moment in MOMENTS:
        past, told = f[:moment], reconstruct(memory[moment - 1], middles(moment))
        out.append(Telling(moment, past, told, ((told - past).norm() / past.norm()).item()))
    return out


def figure(theme: Theme) -> Any:
    """Three moments above, the memory over time below, all on one axis of time."""
    drawn = sheet(
        10.2,
        7.3,
        f"One page for any past: {DEGREES} numbers, told again at three moments",
        "HiPPO-LegS compresses a signal while it passes. Line: the signal so far. Dashes: what the memory tells of it."
        "\nAs the past grows, the same numbers stretch over it: nothing old is dropped, all of it gets coarser.",
    )
    f = signal()
    memory = online_hippo(f, DEGREES)
    for row, telling in enumerate(tellings(f, memory)):
        _telling(place(drawn, 1.0, 1.3 + 1.15 * row, 8.0, 0.95), theme, telling)
    _memory(drawn, theme, memory)
    return drawn


def _telling(axes: Any, theme: Theme, found: Telling) -> None:
    times = torch.arange(found.moment)
    axes.plot(times, found.past, color=theme.blue, linewidth=1.6)
    axes.plot(times, found.told, color=theme.orange, linewidth=1.6, linestyle=(0, (3, 1.6)))
    axes.axvline(found.moment, color=theme.quiet, linewidth=0.9)
    axes.text(
        found.moment + 15,
        0,
        f"{100 * found.error:.0f} % lost",
        va="center",
        color=theme.orange,
        weight="bold",
        size=9.5,
    )
    axes.set_ylabel(f"t = {found.moment}", rotation=0, ha="right", va="center")
    axes.set_xlim(0, LENGTH)
    axes.set_ylim(-2.8, 2.8)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[["left", "bottom"]].set_visible(False)


def _memory(drawn: Any, theme: Theme, memory: Tensor) -> None:
    axes = place(drawn, 1.0, 4.9, 8.0, 1.75)
    # Every sixth state: more than a screen can show only makes the file larger.
    shown = memory[::6].mT.numpy()
    mesh = axes.imshow(
        shown, cmap=theme.signed(), vmin=-0.6, vmax=0.6, aspect="auto", extent=(0, LENGTH, DEGREES, 0), rasterized=True
    )
    for moment in MOMENTS[:-1]:
        axes.axvline(moment, color=theme.quiet, linewidth=0.9)
    axes.set_ylabel("degree")
    axes.set_yticks([0, 16, 32])
    axes.set_xticks([0, *MOMENTS])
    axes.set_xlabel("samples seen")
    bar = place(drawn, 9.2, 5.2, 0.12, 1.45)
    scale = drawn.colorbar(mesh, cax=bar, ticks=[-0.6, 0, 0.6])
    scale.outline.set_visible(False)
    bar.set_title("$c_n$", size=9.5, pad=8)
