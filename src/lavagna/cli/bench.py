"""`lavagna bench`: speed of the forms, of decoding, and of all that runs on a CPU, as ratios."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from lavagna.bench import cpu
from lavagna.cli.choices import listed
from lavagna.cli.console import Json, as_json_text, print_table, show

PARTS = ("forms", "decoding", "cpu")
# What is measured where nothing is named: minutes, not an hour.
USUAL = ("forms", "decoding")
NONE = "none"
QUICK_FORMS: dict[str, Any] = {"sizes": (16,), "steps": 128, "rounds": 1}
QUICK_DECODING: dict[str, Any] = {"at": (10, 40), "tokens": 2, "rounds": 1}
# Columns of the program's rows that a person can do without.
UNSEEN = ("section", "unit", "against_ms", "difference", "tolerance", "runs")
UNBOUNDED = (
    "--quick: short runs can't meet bounds, so no time is held to one here; whether answers are right is judged."
)


class Choice(NamedTuple):
    """What is to be measured: parts, sections of the part cpu, layers (None: each part's own) and peers."""

    parts: list[str]
    sections: list[str]
    layers: list[str] | None
    peers: list[str]
    quick: bool


def bench(
    parts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="|".join(PARTS),
            help="What to measure: the forms of the recurrence, the cost of one more token (decoding), or all that "
            "runs on a CPU (cpu). By default forms and decoding.",
        ),
    ] = None,
    section: Annotated[
        str | None,
        typer.Option(
            help=f"For cpu: measure only these sections, separated by commas: {', '.join(cpu.SECTIONS)}. "
            "By default all of them."
        ),
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option(
            help="For decoding and for cpu's training and generation: measure models of these layers only, separated "
            "by commas."
        ),
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option(
            help="For cpu's scan, training and generation: compare with these packages only, separated by commas: "
            f"{', '.join(cpu.PEERS)}; or none. By default with each that is installed."
        ),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For cpu, but for its section step: how many threads to use. By default as many as torch would.",
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Use tiny sizes and one round, to try the command. No time is held to a bound."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write the result to this new file, as --json prints it. Each row is written as soon as it is "
            "measured, so the file is whole at any moment, even if the run is interrupted.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure speed, as ratios to what the machine can do at best or to other packages.

    Times are compared with the time that the necessary arithmetic or memory traffic takes on this machine, or with
    another implementation, measured in the same run. The exit code is 1 where an answer was wrong.
    """
    from torch import get_num_threads

    from lavagna.bench.clock import threads as on_threads

    chosen = _chosen(parts, section, layer, peer, threads, quick)
    found: list[dict[str, Any]] = []
    with on_threads(threads or get_num_threads()):
        settings = _settings(chosen)
        kept = _Kept(output, settings)
        kept.write(found)
        try:
            for part, title, rows in _measurements(chosen):
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


def _chosen(
    parts: list[str] | None,
    section: str | None,
    layer: str | None,
    peer: str | None,
    threads: int | None,
    quick: bool,
) -> Choice:
    """What the options ask for. Raises ValueError on unknown names, and on an option that nothing asked for uses."""
    from lavagna.layers import names

    wanted = listed("bench", "part", ",".join(parts or USUAL), PARTS)
    sections = listed("bench", "section", section, [*cpu.SECTIONS]) if section else [*cpu.SECTIONS]
    layers = listed("bench", "layer", layer, names()) if layer else None
    peers = listed("bench", "peer", peer, [*cpu.PEERS, NONE]) if peer else [*cpu.PEERS]
    if NONE in peers and len(peers) > 1:
        raise ValueError(f"bench: --peer came as {peer!r}, but none goes alone. Leave it out, or the others.")
    asked = {*wanted} - {"cpu"} | ({*sections} if "cpu" in wanted else set())
    by = cpu.SECTIONS.items()
    if section:
        _check_used("--section", ["cpu"], {*wanted})
    if layer:
        _check_used("--layer", ["decoding", *(name for name, one in by if one.layers)], asked)
    if threads:
        _check_used("--threads", [name for name, one in by if one.threads], asked)
    for name in peers if peer else ():
        takers = [each for each, one in by if name in one.peers or (name == NONE and one.peers)]
        _check_used(f"--peer {name}", takers, asked)
    return Choice(wanted, sections, layers, [name for name in peers if name != NONE], quick)


def _check_used(option: str, takers: list[str], asked: set[str]) -> None:
    if asked.isdisjoint(takers):
        sections = [name for name in takers if name in cpu.SECTIONS]
        places = [name for name in takers if name not in sections]
        if sections:
            places.append(f"cpu --section {','.join(sections)}")
        raise ValueError(f"bench: {option} is for {' and '.join(places)}. Ask for that too, or leave it out.")


def _settings(chosen: Choice) -> dict[str, Any]:
    """What a result has to be read with; of layers and peers those that something asked for measures."""
    from lavagna.layers import names

    own: list[str] = list(names()) if "decoding" in chosen.parts else []
    settings: dict[str, Any] = {"parts": chosen.parts, "quick": chosen.quick}
    if {*chosen.parts} & {*USUAL}:
        settings |= {"threads": 1, "dtype": "float32"}
    if "cpu" in chosen.parts:
        sections = [cpu.SECTIONS[name] for name in chosen.sections]
        own += [name for one in sections if one.layers for name in one.layers()]
        peers = [name for name in chosen.peers if any(name in one.peers for one in sections)]
        settings |= {"sections": chosen.sections, "peers": peers, "machine": cpu.about()}
    return settings | {"layers": (chosen.layers or list(dict.fromkeys(own))) if own else []}


def _measurements(chosen: Choice) -> Iterator[tuple[str, str, Iterator[dict[str, Any]]]]:
    """The part, a title, and the rows of each table, which are measured as they are taken."""
    from lavagna import bench as measured
    from lavagna.layers import names

    for part in chosen.parts:
        if part == "forms":
            yield part, part, _rows(measured.form_rows(**QUICK_FORMS if chosen.quick else {}), chosen.quick)
        elif part == "decoding":
            options = QUICK_DECODING if chosen.quick else {}
            yield part, part, _rows(measured.decoding_rows(chosen.layers or names(), **options), chosen.quick)
        else:
            for section in chosen.sections:
                rows = cpu.rows(section, layers=chosen.layers, others=chosen.peers, quick=chosen.quick)
                yield part, section, _rows(rows, chosen.quick)


def _rows(rows: Iterable[Any], quick: bool) -> Iterator[dict[str, Any]]:
    for row in rows:
        named = row._asdict()
        yield named | {"bound": None, "holds": None} if quick and "bound" in named else named


def _seen(row: dict[str, Any]) -> dict[str, Any]:
    """What of a row a person looks at."""
    seen = {name: value for name, value in row.items() if name not in ("part", *UNSEEN)}
    if row.get("rate") is not None:
        seen["rate"] = f"{row['rate']:.4g} {row['unit']}"
    return seen
