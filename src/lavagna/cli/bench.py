"""`lavagna bench`: speed of the forms and of decoding, as ratios."""

from typing import Annotated, Any

import typer

from lavagna.cli.choices import listed
from lavagna.cli.console import Json, print_table, show

PARTS = ("forms", "decoding")
QUICK_FORMS: dict[str, Any] = {"sizes": (16,), "steps": 128, "rounds": 1}
QUICK_DECODING: dict[str, Any] = {"at": (10, 40), "tokens": 2, "rounds": 1}


def bench(
    parts: Annotated[list[str] | None, typer.Argument(metavar="forms|decoding", help="What; both.")] = None,
    layer: Annotated[str | None, typer.Option(help="Decode with NAME[,NAME...] only; all.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Short texts and few rounds: to try it, not to judge.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Time of every transition over the floor of its arithmetic, and of a token early and late in a text."""
    from lavagna import bench as measured
    from lavagna.layers import names

    wanted = parts or list(PARTS)
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        raise ValueError(f"bench: there is nothing called {unknown[0]!r}. Use any of {', '.join(PARTS)}.")
    layers = listed("bench", "layer", layer, names()) if layer else names()
    tables = {
        "forms": lambda: measured.form_rows(**QUICK_FORMS if quick else {}),
        "decoding": lambda: measured.decoding_rows(layers, **QUICK_DECODING if quick else {}),
    }
    found = {part: [row._asdict() for row in tables[part]()] for part in wanted}
    if as_json:
        rows = [{"part": part, **row} for part, rows in found.items() for row in rows]
        settings = {"parts": wanted, "layers": layers, "quick": quick, "threads": 1, "dtype": "float32"}
        show("bench", settings, rows, as_json=True)
        return
    for part, rows in found.items():
        print_table(rows, part)
