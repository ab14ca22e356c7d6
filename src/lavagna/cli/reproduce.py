"""`lavagna reproduce`: a paper's number beside ours."""

import sys
from typing import Annotated

import typer

from lavagna.cli.console import Json, show, this_command

ALL = "all"


def reproduce(
    claims: Annotated[
        list[str] | None,
        typer.Argument(metavar="CLAIM", help="The claims to reproduce; all takes each that needs seconds only."),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed of all that is drawn at random.")] = 0,
    as_json: Json = False,
) -> None:
    """Reproduce what papers claim and print their numbers beside ours, or list the claims where none is named.

    The exit code is 1 where a claim does not hold.
    """
    from lavagna import reproduce as claimed

    if not claims:
        rows = [
            {"claim": name, "takes": "minutes" if claimed.is_slow(name) else "seconds", "says": claimed.describe(name)}
            for name in claimed.names()
        ]
        show("reproduce", {}, rows, as_json=as_json)
        return
    wanted, left_out = _chosen(claims)
    rows = []
    for name in wanted:
        if claimed.is_slow(name):
            print(f"{name}: this takes minutes", file=sys.stderr, flush=True)
        rows += [row._asdict() for row in claimed.run(name, seed=seed)]
    show("reproduce", {"claims": wanted, "seed": seed, "left_out": left_out}, rows, as_json=as_json)
    if left_out and not as_json:
        command = f"{this_command()} reproduce {' '.join(left_out)}"
        print(f"Left out, for they take minutes: {', '.join(left_out)}. Run them by name: {command}")
    if not all(row["holds"] for row in rows):
        raise typer.Exit(1)


def _chosen(claims: list[str]) -> tuple[list[str], list[str]]:
    """The claims to run, and those that 'all' leaves to be asked for by name."""
    from lavagna import reproduce as claimed

    named = [name for name in dict.fromkeys(claims) if name != ALL]
    for name in named:
        claimed.describe(name)
    if ALL not in claims:
        return named, []
    wanted = [name for name in claimed.names() if name in named or not claimed.is_slow(name)]
    return wanted, [name for name in claimed.names() if name not in wanted]
