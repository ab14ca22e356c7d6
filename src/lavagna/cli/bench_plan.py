"""What `lavagna bench` is asked to measure, and the rows of it."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from lavagna.bench import cpu
from lavagna.cli.choices import listed

PARTS = ("forms", "decoding", "cpu")
# What is measured where nothing is named: minutes, not an hour.
USUAL = ("forms", "decoding")
NONE = "none"
QUICK_FORMS: dict[str, Any] = {"sizes": (16,), "steps": 128, "rounds": 1}
QUICK_DECODING: dict[str, Any] = {"at": (10, 40), "tokens": 2, "rounds": 1}


class Choice(NamedTuple):
    """What is to be measured: parts, sections of the part cpu, layers (None: each part's own) and peers."""

    parts: list[str]
    sections: list[str]
    layers: list[str] | None
    peers: list[str]
    quick: bool


def choose(
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
    every = list(cpu.SECTIONS)
    sections = every if section is None else listed("bench", "section", section, every)
    layers = None if layer is None else listed("bench", "layer", layer, names())
    peers = list(cpu.PEERS) if peer is None else listed("bench", "peer", peer, [*cpu.PEERS, NONE])
    if NONE in peers and len(peers) > 1:
        raise ValueError(f"bench: --peer came as {peer!r}, but none goes alone. Leave it out, or the others.")
    asked = {*wanted, *(sections if "cpu" in wanted else ())}
    if section is not None:
        _check_used("--section", ["cpu"], asked)
    if layer is not None:
        _check_used("--layer", ["decoding", *(name for name, one in cpu.SECTIONS.items() if one.layers)], asked)
    if threads is not None:
        _check_used("--threads", [name for name, one in cpu.SECTIONS.items() if one.threads], asked)
    for each in peers if peer is not None else ():
        known = [name for name, one in cpu.SECTIONS.items() if each in one.peers or (each == NONE and one.peers)]
        _check_used(f"--peer {each}", known, asked)
    return Choice(wanted, sections, layers, [name for name in peers if name != NONE], quick)


def _check_used(option: str, takers: list[str], asked: set[str]) -> None:
    if asked.isdisjoint(takers):
        sections = [name for name in takers if name in cpu.SECTIONS]
        places = [name for name in takers if name not in sections]
        if sections:
            places.append(f"cpu --section {','.join(sections)}")
        raise ValueError(f"bench: {option} is for {' and '.join(places)}. Ask for that too, or leave it out.")


def settings_of(chosen: Choice) -> dict[str, Any]:
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


def measurements(chosen: Choice) -> Iterator[tuple[str, str, Iterator[dict[str, Any]]]]:
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
