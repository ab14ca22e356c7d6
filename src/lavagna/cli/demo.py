"""`lavagna demo`: the main job from beginning to end, on text that every machine has."""

from pathlib import Path
from typing import Annotated

import typer

FOLDER = Path("runs/demo")


def demo(
    out: Annotated[
        Path | None, typer.Option(help="The folder for all that is made.", show_default="the first free runs/demo")
    ] = None,
    layer: Annotated[str, typer.Option(help="The architecture to train.")] = "gated_delta_net",
    seconds: Annotated[
        float, typer.Option(help="How long training may take. On a slow machine fewer steps are made.")
    ] = 85,
    seed: Annotated[int, typer.Option(help="The seed of the parameters, the batches and the new text.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Train a tiny model for a moment, only to try the command.")
    ] = False,
) -> None:
    """Show everything at once, in about two minutes.

    A small language model is trained on the source of Python's own standard library. It then writes new text, is
    checked to give the same answer in every form, and its memory is drawn.
    """
    from lavagna.cli.demonstration import Demonstration

    folder = out or _free(FOLDER)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"demo: '{folder}' is there already. Choose another --out, or remove it.")
    if seconds <= 0:
        raise ValueError(f"demo: --seconds came as {seconds:g}, but a number above 0 was wanted.")
    shown = Demonstration(folder, layer, seconds=seconds, seed=seed, quick=quick)
    shown.train()
    shown.write()
    held = shown.check()
    shown.draw()
    shown.close()
    if not held:
        raise typer.Exit(1)


def _free(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, ... that is not there yet, so that no run is overwritten."""
    found, count = folder, 1
    while found.exists():
        count += 1
        found = folder.with_name(f"{folder.name}-{count}")
    return found
