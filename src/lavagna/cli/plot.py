"""`lavagna plot`: the figures."""

from pathlib import Path
from typing import Annotated, Any

import typer

from lavagna.cli.console import Json, show
from lavagna.cli.model_source import open_source

ALL = "all"
STATE = "state"


def plot(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="FIGURE", help="The figures to draw; all draws all of them.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder that the pictures are written to.")] = Path("figures"),
    theme: Annotated[str, typer.Option(help="The colors: light, dark or both.")] = "both",
    format: Annotated[str, typer.Option(help="The format of the pictures: png, svg or pdf.")] = "png",
    run: Annotated[
        Path | None, typer.Option(help="For the figure state: the run or checkpoint whose memory is drawn.")
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="For the figure state: the text that is read into the memory.")
    ] = None,
    block: Annotated[
        int | None, typer.Option(help="For the figure state: which block's memory is drawn.", show_default="0")
    ] = None,
    head: Annotated[
        int | None, typer.Option(help="For the figure state: which head's memory is drawn.", show_default="0")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw figures, or list them where none is named.

    Each is drawn in light and in dark colors. The figure state shows the memory of a trained model, which --run names.
    """
    from lavagna import plots

    told = {"run": run, "text": text, "block": block, "head": head}
    told = {name: value for name, value in told.items() if value is not None}
    if not names and not told:
        rows = [{"figure": name, "shows": plots.describe(name)} for name in plots.names()]
        show("plot", {}, rows, as_json=as_json)
        return
    wanted = _wanted(names or [], plots.names(), run)
    themes = ("light", "dark") if theme == "both" else (theme,)
    if told and STATE not in wanted:
        raise ValueError(f"plot: --{next(iter(told))} is for the figure {STATE}. Ask for that too, or leave it out.")
    options = {STATE: _state_options(**told)} if STATE in wanted else {}
    rows = [
        {"figure": name, "theme": one, "path": str(plots.draw(name, theme=one, out=path, **options.get(name, {})))}
        for name in wanted
        for one in themes
        for path in [out / f"{name}-{one}.{format.lower()}"]
    ]
    show("plot", {"theme": theme, "out": str(out), "run": run and str(run)}, rows, as_json=as_json)


def _wanted(names: list[str], known: list[str], run: Path | None) -> list[str]:
    if ALL in names:
        # Without a model there is no memory to look into.
        return [name for name in known if name != STATE or run]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"plot: no figure is called {unknown[0]!r}. The figures are {', '.join(known)}, or {ALL}.")
    return list(dict.fromkeys(names))


def _state_options(run: Path | None = None, **told: Any) -> dict[str, Any]:
    if run is None:
        raise ValueError("plot: the figure state needs a trained model. Give --run and a run or checkpoint folder.")
    source = open_source("plot", run)
    return {"model": source.model, "tokenizer": source.tokenizer, **told}
