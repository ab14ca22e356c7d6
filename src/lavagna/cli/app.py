"""The verbs of the command, in the order in which a newcomer meets them."""

from typing import Annotated

import typer

from lavagna.cli import bench, check, convert, demo, generate, info, plot, reproduce, train
from lavagna.version import __version__

app = typer.Typer(
    name="lavagna",
    help="Sequence models with a fixed-size memory: train, generate, check, draw.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> bool:
    if wanted:
        print(__version__)
        raise typer.Exit
    return wanted


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Where something is wrong with the input, show Python's whole traceback.")
    ] = False,
) -> None:
    """Sequence models with a fixed-size memory: train, generate, check, draw."""


def _paragraphs(text: str) -> str:
    """A text with its paragraphs as lines, which a terminal breaks where it ends itself."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


for verb in (
    demo.demo,
    train.train,
    generate.generate,
    check.check,
    plot.plot,
    info.info,
    convert.convert,
    reproduce.reproduce,
    bench.bench,
):
    app.command(help=_paragraphs(verb.__doc__ or ""))(verb)
