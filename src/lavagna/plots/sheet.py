"""The sheet a figure is drawn on: its size, its headline, and how it reaches the disk."""

import os
from pathlib import Path
from typing import Any

from lavagna.atomic_file import atomic_file

FORMATS = (".png", ".svg", ".pdf")
DPI = 160
MARGIN = 0.35


def sheet(width: float, height: float, headline: str, reading: str) -> Any:
    """An empty figure of this size in inches, with the point it makes on top and how to read it below that."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI)
    FigureCanvasAgg(figure)
    quiet = _quiet()
    figure.text(MARGIN / width, 1 - 0.3 / height, headline, size=14, weight="bold", va="top", ha="left")
    figure.text(MARGIN / width, 1 - 0.64 / height, reading, size=9.5, color=quiet, va="top", ha="left", linespacing=1.4)
    return figure


def place(figure: Any, left: float, top: float, width: float, height: float) -> Any:
    """Axes on a sheet, measured in inches from its left and its top edge."""
    whole_width, whole_height = figure.get_size_inches()
    return figure.add_axes(
        (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
    )


def save(figure: Any, out: str | os.PathLike[str]) -> Path:
    """Write a figure whole or not at all; the suffix says how. Raises ValueError on a suffix that isn't one of ours."""
    path = Path(out)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"plots.draw: out must end in {', '.join(FORMATS)}, but came as {str(path)!r}.")
    kind = path.suffix[1:].lower()
    # A date would make a file of every drawing of the same figure another one.
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with atomic_file(path) as file:
        figure.savefig(file, format=kind, metadata=undated)
    return path


def _quiet() -> str:
    from matplotlib import rcParams

    return rcParams["xtick.color"]
