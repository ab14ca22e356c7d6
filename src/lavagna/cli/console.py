"""What is printed: a table for a person, or one JSON object for a program."""

import json
import math
import os
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from lavagna.version import __version__

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, and nothing else.")]
WIDTH_OF_A_FILE = 160
ROOM_FOR_A_WORD = 8


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
        print(as_json_text(command, settings, rows))
    elif rows:
        print_table(rows, title)


def as_json_text(command: str, settings: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> str:
    """A command's settings and rows as the one JSON object that `--json` prints."""
    content = {"command": command, "version": __version__, "settings": dict(settings), "rows": list(rows)}
    return json.dumps(_plain(content), indent=2, allow_nan=False)


def print_table(rows: Sequence[Mapping[str, Any]], title: str | None = None, *, plain: bool = False) -> None:
    """Print rows with the same keys as a table, numbers to the right, bad news in red, keys as they are if `plain`."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    headings = {name: name if plain else _heading(name, _is_numeric(rows, name)) for name in rows[0]}
    whole = _in_one_piece(rows, headings)
    for name, heading in headings.items():
        justify = "right" if _is_numeric(rows, name) else "left"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=name in whole)
    for row in rows:
        table.add_row(*map(_cell, row.values()), style="bold red" if any(it is False for it in row.values()) else None)
    _draw(table)


def print_turned(rows: Sequence[Mapping[str, Any]], name: str) -> None:
    """Print few rows with many keys as a table turned on its side: a line a key, a column a row, headed by `name`."""
    keys = [key for key in rows[0] if key != name]
    print_table(
        [{"": key.replace("_", " ")} | {row[name]: _cell(row[key]) for row in rows} for key in keys], plain=True
    )


def this_command() -> str:
    """The command as this shell finds it: by its name, by the path by which it was called, or as Python's module."""
    if shutil.which("lavagna"):
        return "lavagna"
    return quote(sys.argv[0]) if Path(sys.argv[0]).name == "lavagna" else f"{quote(sys.executable)} -m lavagna"


def print_pairs(pairs: Mapping[str, Any]) -> None:
    """Print names and values below one another."""
    from rich.table import Table

    table = Table(box=None, show_header=False)
    for name, value in pairs.items():
        table.add_row(name.replace("_", " "), _cell(value))
    _draw(table)


def _is_numeric(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Whether a column holds numbers, and at most some of its cells nothing."""
    first = next((row[name] for row in rows if row[name] is not None), None)
    return isinstance(first, int | float) and not isinstance(first, bool)


def _in_one_piece(rows: Sequence[Mapping[str, Any]], headings: Mapping[str, str]) -> set[str]:
    """The columns that a narrow terminal does not fold: numbers, and what a row is about if there is room."""
    widths = {
        name: max(len(line) for line in [*heading.split("\n"), *(_cell(row[name]) for row in rows)])
        for name, heading in headings.items()
    }
    numbers = {name for name in headings if _is_numeric(rows, name)}
    words = [name for name in headings if name not in numbers]
    room = _width() - sum(widths[name] for name in numbers) - 3 * len(headings) - ROOM_FOR_A_WORD * len(words)
    if room < 0:
        return set(words[:1])
    first = set(words[:1]) if words and widths[words[0]] - ROOM_FOR_A_WORD <= room else set()
    return numbers | first


def _heading(name: str, numeric: bool) -> str:
    # Over numbers with one word a line, so that it is no wider than they are.
    words = name.replace("_", " ")
    return words.replace(" ", "\n") if numeric else words


def _width() -> int:
    """Columns of the terminal; wide where no terminal says how wide it is, so that no table is cut in a file."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return WIDTH_OF_A_FILE


def _draw(table: Any) -> None:
    from rich.console import Console

    console = Console(file=sys.stdout, width=_width(), highlight=False, markup=False, emoji=False)
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
    return "-" if value is None else str(value)


def _plain(value: Any) -> Any:
    """The value in JSON's own terms, which have no infinities and no NaN."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | None) else str(value)
