"""What is printed: a table for a person, or one JSON object for a program."""

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from lavagna.version import __version__

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
WIDTH_OF_A_FILE = 160


def show(
    command: str,
    settings: Mapping[str, Any],
    rows: Iterable[Mapping[str, Any]],
    *,
    as_json: bool,
    title: str | None = None,
) -> None:
    """Print rows, all with the same keys, as a table, or with their command and settings as one JSON object."""
    rows = list(rows)
    if as_json:
        content = {"command": command, "version": __version__, "settings": dict(settings), "rows": rows}
        print(json.dumps(_plain(content), indent=2, allow_nan=False))
    elif rows:
        print_table(rows, title)


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> None:
    """Print rows with the same keys as a table, numbers to the right, bad news in red."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name, value in rows[0].items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # What a row is about stands first, and stays in one piece.
        whole = not table.columns
        table.add_column(name.replace("_", " "), justify="right" if number else "left", overflow="fold", no_wrap=whole)
    for row in rows:
        table.add_row(*map(_cell, row.values()), style="bold red" if False in row.values() else None)
    _draw(table)


def print_pairs(pairs: Mapping[str, Any]) -> None:
    """Print names and values below one another."""
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, value in pairs.items():
        table.add_row(name.replace("_", " "), _cell(value))
    _draw(table)


def _draw(table: Any) -> None:
    from rich.console import Console

    # Wide where no terminal says how wide it is, so that no table is cut in a file.
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else WIDTH_OF_A_FILE
    console = Console(file=sys.stdout, width=wide, highlight=False, markup=False, emoji=False)
    # Not printed by the console itself, which ends the process when the pipe is closed.
    with console.capture() as text:
        console.print(table)
    print(text.get(), end="")


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    """The value in JSON's own terms, which have no infinities and no NaN."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)
