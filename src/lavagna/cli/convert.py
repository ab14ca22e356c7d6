"""`lavagna convert`: a checkpoint in another format."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[
        Path, typer.Argument(help="The checkpoint to read: a folder or file of a known format, one of ours, or a run.")
    ],
    target: Annotated[
        Path, typer.Argument(help="The new folder to write; for formats of one file, a new file that ends in .pth.")
    ],
    to: Annotated[
        str | None,
        typer.Option(
            help="The format to write. By default a foreign checkpoint becomes ours, and ours what it once was."
        ),
    ] = None,
) -> None:
    """Convert a checkpoint from elsewhere to ours, or one of ours back, bit for bit."""
    from lavagna.checkpoints import convert
    from lavagna.cli.model_source import find_checkpoint

    done = convert(find_checkpoint("convert", source), target, to=to)
    print(f"{done.source} -> {done.target}: {done.tensors} tensors, {done.nbytes / 1e6:,.1f} MB in {target}")
