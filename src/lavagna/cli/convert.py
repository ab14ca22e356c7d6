"""`lavagna convert`: a checkpoint in another format."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[Path, typer.Argument(help="A folder or file of a format that is known, of ours, or a run.")],
    target: Annotated[Path, typer.Argument(help="A new folder; a file ending in .pth where that is all there is.")],
    to: Annotated[
        str | None, typer.Option(help="The format to write: by default ours, or where ours came from.")
    ] = None,
) -> None:
    """Write a foreign checkpoint as ours, or ours as the one that it came from, bit for bit."""
    from lavagna.checkpoints import convert
    from lavagna.cli.model_source import find_checkpoint

    done = convert(find_checkpoint("convert", source), target, to=to)
    print(f"{done.source} -> {done.target}: {done.tensors} tensors, {done.nbytes / 1e6:,.1f} MB in {target}")
