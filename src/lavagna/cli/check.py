"""`lavagna check`: every answer against the definition in float64."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from lavagna.cli.choices import listed
from lavagna.cli.console import Json, show

ALGEBRA = "algebra"
DTYPES = ("float64", "float32")


def check(
    layer: Annotated[
        str | None,
        typer.Option(
            help=f"Check only these layers, separated by commas; {ALGEBRA} stands for the six transitions without a "
            "layer. By default all of them."
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="The precisions to check, separated by commas.")] = ",".join(DTYPES),
    seed: Annotated[int, typer.Option(help="The seed of the parameters and texts that are drawn.")] = 0,
    as_json: Json = False,
) -> None:
    """Check that every architecture gives the same answer in every form and on every backend.

    Shown is the largest difference from the recurrence itself, taken one step at a time in float64. The exit code is 1
    where one is larger than it may be.
    """
    from lavagna.cli.progress import telling
    from lavagna.layers import names

    dtypes = listed("check", "dtype", dtype, DTYPES)
    wanted = listed("check", "layer", layer, (ALGEBRA, *names())) if layer else [ALGEBRA, *names()]
    rows: list[dict[str, Any]] = []
    with telling("checking") as progress:
        for done, name in enumerate(wanted):
            if progress:
                progress(done, len(wanted))
            rows += _rows(name, dtypes, seed)
    shown = rows if as_json else _side_by_side(rows)
    show("check", {"layers": wanted, "dtypes": dtypes, "seed": seed}, shown, as_json=as_json)
    failed = sum(not row["ok"] for row in rows)
    if not as_json:
        print(f"{len(rows) - failed} of {len(rows)} hold" + (f"; {failed} DO NOT" if failed else ""))
    if failed:
        raise typer.Exit(1)


def _side_by_side(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a layer and form, the differences of each precision beside one another."""
    lines: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in rows:
        start = {name: row[name] for name in ("layer", "form", "backend")}
        lines.setdefault(tuple(start.values()), start)[f"{row['dtype']} {row['quantity']}"] = row["difference"]
    for (layer, form, backend), line in lines.items():
        own = (row for row in rows if (row["layer"], row["form"], row["backend"]) == (layer, form, backend))
        line["ok"] = all(row["ok"] for row in own)
    return list(lines.values())


def _rows(name: str, dtypes: list[str], seed: int) -> Iterator[dict[str, Any]]:
    import torch

    from lavagna import checks

    kinds = tuple(getattr(torch, dtype) for dtype in dtypes)
    if name == ALGEBRA:
        found = (row for one in checks.TRANSITIONS for row in checks.transition_rows(one, kinds, seed=seed))
    else:
        found = checks.layer_rows(name, kinds, seed=seed)
    return (row._asdict() for row in found)
