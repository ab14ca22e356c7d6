"""`lavagna bench`: speed of the forms, of decoding, and of all that runs on a CPU, as ratios."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lavagna.cli.choices import listed
from lavagna.cli.console import Json, print_table, show

PARTS = ("forms", "decoding", "cpu")
# What is measured where nothing is named: minutes, not an hour.
USUAL = ("forms", "decoding")
SECTIONS = ("machine", "recurrence", "scan", "step", "training", "generation")
PEERS = ("transformers", "rwkv", "mambapy", "llama-cpp-python")
QUICK_FORMS: dict[str, Any] = {"sizes": (16,), "steps": 128, "rounds": 1}
QUICK_DECODING: dict[str, Any] = {"at": (10, 40), "tokens": 2, "rounds": 1}
# Columns of the program's rows that a person can do without.
UNSEEN = ("section", "unit", "against_ms", "difference", "tolerance", "runs")


def bench(
    parts: Annotated[
        list[str] | None, typer.Argument(metavar="|".join(PARTS), help="What; forms and decoding.")
    ] = None,
    layer: Annotated[str | None, typer.Option(help="Models of NAME[,NAME...] only; all, or a section's own.")] = None,
    section: Annotated[str | None, typer.Option(help=f"Of cpu, NAME[,NAME...] of {', '.join(SECTIONS)}; all.")] = None,
    peer: Annotated[
        str | None, typer.Option(help=f"Of cpu, beside NAME[,NAME...] of {', '.join(PEERS)}, none.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Of cpu, as many threads as torch takes.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short texts and few rounds: to try it, not to judge.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time over the floor of the arithmetic, of the bytes, or of others' time. Exit 1 where an answer was wrong."""
    from lavagna.layers import names

    wanted = parts or list(USUAL)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        raise ValueError(f"bench: there is nothing called {unknown[0]!r}. Use any of {', '.join(PARTS)}.")
    layers = listed("bench", "layer", layer, names()) if layer else None
    sections = listed("bench", "section", section, SECTIONS) if section else list(SECTIONS)
    others = [] if peer == "none" else listed("bench", "peer", peer, PEERS) if peer else list(PEERS)
    settings: dict[str, Any] = {"parts": wanted, "layers": layers or names(), "quick": quick}
    found: list[dict[str, Any]] = []
    for part in wanted:
        if part == "cpu":
            more, rows = _cpu(sections, layers, others, threads, quick, as_json)
            settings |= more
        else:
            settings |= {"threads": 1, "dtype": "float32"}
            rows = _one_thread(part, layers or names(), quick)
            if not as_json:
                print_table(rows, part)
        found += [{"part": part, **row} for row in rows]
    if as_json:
        show("bench", settings, found, as_json=True)
    if not all(row.get("right", True) for row in found):
        raise typer.Exit(1)


def _one_thread(part: str, layers: Sequence[str], quick: bool) -> list[dict[str, Any]]:
    from lavagna import bench as measured

    if part == "forms":
        rows = measured.form_rows(**QUICK_FORMS if quick else {})
    else:
        rows = measured.decoding_rows(layers, **QUICK_DECODING if quick else {})
    return [row._asdict() for row in rows]


def _cpu(
    sections: Sequence[str],
    layers: Sequence[str] | None,
    others: Sequence[str],
    count: int | None,
    quick: bool,
    as_json: bool,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Settings and rows, each section printed when it is done."""
    import torch

    from lavagna.bench import cpu
    from lavagna.bench.clock import threads

    found: list[dict[str, Any]] = []
    with threads(count or torch.get_num_threads()):
        for section in sections:
            rows = [row._asdict() for row in cpu.rows(section, layers=layers, others=others, quick=quick)]
            if not as_json:
                print_table([_seen(row) for row in rows], section)
            found += rows
        settings = {"sections": list(sections), "peers": list(others), "machine": cpu.about()}
    return settings, found


def _seen(row: dict[str, Any]) -> dict[str, Any]:
    rate = None if row["rate"] is None else f"{row['rate']:.4g} {row['unit']}"
    return {name: rate if name == "rate" else value for name, value in row.items() if name not in UNSEEN}
