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
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Say it.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="On bad input, show where it was found.")] = False,
) -> None:
    """Sequence models with a fixed-size memory: train, generate, check, draw."""


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
    app.command()(verb)
