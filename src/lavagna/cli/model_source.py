"""A model that the user names by a folder: a run, whose newest checkpoint it is, or a checkpoint itself."""

from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from lavagna.cli.console import this_command

DEMO_RUN = "run"


class Source(NamedTuple):
    """A model and its tokenizer, and the folder that they were read from."""

    model: Any
    tokenizer: Any
    checkpoint: Path


def open_source(call: str, path: Path, *, device: str | None = None, tokenizer: bool = False) -> Source:
    """Read the language model in a run's or a checkpoint's folder; with `tokenizer`, insist that one is there too.

    Raises `FileNotFoundError` or `ValueError` where there is none or it can't be read.
    """
    from lavagna.checkpoints import load
    from lavagna.checkpoints.plan import OURS, plan
    from lavagna.models import LanguageModel

    checkpoint = find_checkpoint(call, path)
    model, found = load(checkpoint, device=device)
    if not isinstance(model, LanguageModel):
        raise ValueError(
            f"{call}: {checkpoint} holds a {model.config.kind}, which judges sequences and writes no text. "
            "Give a run or a checkpoint of a language model."
        )
    if tokenizer and found is None:
        ours = plan(checkpoint).format == OURS
        mend = (
            "Save it with lavagna.save(model, path, tokenizer)."
            if ours
            else "Put its tokenizer.json (or vocabulary file: rwkv_vocab*.txt, 20B_tokenizer.json) beside it."
        )
        raise ValueError(f"{call}: {checkpoint} holds a model but no tokenizer, so text can't become ids. {mend}")
    return Source(model, found, checkpoint)


def find_checkpoint(call: str, path: Path) -> Path:
    """The newest checkpoint of a run or of a demonstration's run, or the path itself where it is neither."""
    from lavagna.training.run import Run

    if not path.exists():
        raise FileNotFoundError(
            f"{call}: there is nothing at '{path}'. Give a run that 'lavagna train --out' made, or a checkpoint folder."
        )
    run = Run(path)
    if not run.checkpoints.is_dir():
        # What `lavagna demo` leaves has the run one folder below.
        inside = path / DEMO_RUN
        return find_checkpoint(call, inside) if Run(inside).config.is_file() else path
    if run.latest is None:
        raise FileNotFoundError(
            f"{call}: the run in '{path}' has no checkpoint yet. "
            f"Let it train: {this_command()} train --out {quote(str(path))} --resume."
        )
    return run.latest
