"""`lavagna bench`: speed of the forms, of decoding, and of all that runs on a CPU, as ratios."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from lavagna.bench import cpu
from lavagna.cli.bench_plan import PARTS, choose, measurements, settings_of
from lavagna.cli.console import Json, as_json_text, print_table, show

# Columns of the program's rows that a person can do without.
UNSEEN = ("part", "section", "unit", "against_ms", "difference", "tolerance", "runs")
UNBOUNDED = (
    "--quick: short runs can't meet bounds, so no time is held to one here; whether answers are right is judged."
)

Parts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="|".join(PARTS),
        help="What to measure: the forms of the recurrence, the cost of one more token (decoding), or all that runs on "
        "a CPU (cpu). By default forms and decoding.",
    ),
]
Sections = Annotated[
    str | None,
    typer.Option(
        help=f"For cpu: measure only these sections, separated by commas: {', '.join(cpu.SECTIONS)}. By default all."
    ),
]
Layers = Annotated[
    str | None,
    typer.Option(
        help="For decoding and for cpu's training and generation: measure only models of these layers, separated by "
        "commas."
    ),
]
Peers = Annotated[
    str | None,
    typer.Option(
        help="For cpu's scan, training and generation: compare with these packages only, separated by commas: "
        f"{', '.join(cpu.PEERS)}; or none. By default with each that is installed."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="For cpu, but for its section step: how many threads to use. By default torch's number."),
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Use tiny sizes and one round, to try the command. No time is held to a bound."),
]
Output = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Also write the result to this new file, as --json prints it. Each row is written as soon as it is "
        "measured, so the file is whole at any moment, even if the run is interrupted.",
    ),
]


def bench(
    parts: Parts = None,
    section: Sections = None,
    layer: Layers = None,
    peer: Peers = None,
    threads: Threads = None,
    quick: Quick = False,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure speed, as ratios to what the machine can do at best or to other packages.

    Times are compared with the time that the necessary arithmetic or memory traffic takes on this machine, or with
    another implementation, measured in the same run. The exit code is 1 where an answer was wrong.
    """
    from torch import get_num_threads

    from lavagna.bench.clock import threads as on_threads

    chosen = choose(parts, section, layer, peer, threads, quick)
    found: list[dict[str, Any]] = []
    with on_threads(threads or get_num_threads()):
        settings = settings_of(chosen)
        kept = _Kept(output, settings)
        kept.write(found)
        try:
            for part, title, rows in measurements(chosen):
                start = len(found)
                for row in rows:
                    found.append({"part": part, **row})
                    kept.write(found)
                if not as_json:
                    print_table([_seen(row) for row in found[start:]], title)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(kept.told(len(found))) from None
    if as_json:
        show("bench", settings, found, as_json=True)
    elif quick:
        print(UNBOUNDED)
    if not all(row.get("right", True) for row in found):
        raise typer.Exit(1)


class _Kept:
    """The file that holds what has been measured so far, if one was asked for. ValueError where it is there already."""

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        if path is not None and path.exists():
            raise ValueError(f"bench: '{path}' is there already. Choose another --output, or remove it.")
        self._path, self._settings = path, settings

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Replace it by one with these rows."""
        from lavagna.atomic_file import atomic_file

        if self._path is not None:
            with atomic_file(self._path) as file:
                file.write(f"{as_json_text('bench', self._settings, rows)}\n".encode())

    def told(self, count: int) -> str:
        """What is said of it where the run is interrupted after so many rows."""
        return "" if self._path is None else f"interrupted. '{self._path}' holds the {count} rows that were measured."


def _seen(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row a person looks at."""
    seen = {name: value for name, value in row.items() if name not in UNSEEN}
    if row.get("rate") is not None:
        seen["rate"] = f"{row['rate']:.4g} {row['unit']}"
    return seen
