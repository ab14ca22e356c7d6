"""`lavagna reproduce`: a paper's number beside ours."""

from typing import Annotated

import typer

from lavagna.cli.console import Json, show

ALL = "all"


def reproduce(
    claims: Annotated[list[str] | None, typer.Argument(metavar="CLAIM", help="Which; 'all' for all.")] = None,
    seed: Annotated[int, typer.Option(help="Of whatever is random.")] = 0,
    as_json: Json = False,
) -> None:
    """Run a paper's claim and print its number beside ours; without a CLAIM, list them. Exit 1 if one doesn't hold."""
    from lavagna import reproduce as claimed

    if not claims:
        rows = [{"claim": name, "says": claimed.describe(name)} for name in claimed.names()]
        show("reproduce", {}, rows, as_json=as_json)
        return
    wanted = claimed.names() if ALL in claims else list(dict.fromkeys(claims))
    for name in wanted:
        claimed.describe(name)
    rows = [row._asdict() for name in wanted for row in claimed.run(name, seed=seed)]
    show("reproduce", {"claims": wanted, "seed": seed}, rows, as_json=as_json)
    if not all(row["holds"] for row in rows):
        raise typer.Exit(1)
