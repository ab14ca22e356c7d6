"""Figures, each drawn from numbers that the library computes; matplotlib is imported only when one is drawn.

A figure is one file with small functions that compute what it shows, and `figure(theme, ...)` that draws it.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from lavagna.plots.theme import THEMES

FIGURES = {
    "zoo": "lavagna.plots.zoo",
    "recall": "lavagna.plots.recall",
    "forms": "lavagna.plots.forms",
    "state": "lavagna.plots.state",
    "hippo": "lavagna.plots.hippo",
    "eigenvalues": "lavagna.plots.eigenvalues",
    "faces": "lavagna.plots.faces",
    "kernel": "lavagna.plots.kernel",
}


def names() -> list[str]:
    """Every figure that can be drawn."""
    return list(FIGURES)


def describe(name: str) -> str:
    """What a figure shows, in one sentence. Raises ValueError on a name that isn't a figure."""
    return (import_module(_module("describe", name)).__doc__ or "").strip().splitlines()[0]


def draw(name: str, *, theme: str = "light", out: str | os.PathLike[str], **options: Any) -> Path:
    """Draw a figure into a file, whole or not at all, and return its path; the suffix of `out` says the format.

    `theme` is "light" or "dark". `options` are those of the figure itself, a TypeError on any other: none for
    most, `trials` and `seed` for "recall", `seed` for "kernel"; "state" needs `model`, `tokenizer` and `text`, and
    takes `block`, `head`.
    Raises ValueError on an unknown figure, theme or suffix.
    """
    module = import_module(_module("draw", name))
    if theme not in THEMES:
        raise ValueError(f"plots.draw: theme must be one of {', '.join(THEMES)}, but came as {theme!r}.")
    from matplotlib import rc_context

    from lavagna.plots.sheet import save

    with rc_context(THEMES[theme].style()):
        return save(module.figure(THEMES[theme], **options), out)


def _module(call: str, name: str) -> str:
    if name not in FIGURES:
        raise ValueError(f"plots.{call}: no figure is called {name!r}. The figures are {', '.join(FIGURES)}.")
    return FIGURES[name]
