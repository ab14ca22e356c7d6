"""From the options of `lavagna train` to all that training needs, without leaving half a run behind."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from lavagna.cli.choices import chosen_model, chosen_training
from lavagna.cli.progress import telling
from lavagna.data import Splits, Tokenizer, open_splits, prepare, texts
from lavagna.models import ModelConfig
from lavagna.training import TrainConfig, read_run
from lavagna.training.distributed import World
from lavagna.training.run import Run

TEXT = "text"
# A vocabulary learned from more text is hardly another one.
BYTES_FOR_TOKENIZER = 20_000_000
VOCABULARY = 4096


class Task(NamedTuple):
    """All that a training needs."""

    model: ModelConfig
    training: TrainConfig
    texts: Splits
    tokenizer: Tokenizer


@contextmanager
def opened(given: Mapping[str, Any], world: World) -> Iterator[Task]:
    """The task that the options describe, its text prepared in the run's folder by the first process.

    Where the task is refused before the run has begun, whatever was written for it is removed again. With `resume` the
    text is the run's own copy, and what the options leave open is as the run has it.
    """
    run = Run(given["out"])
    fresh = not run.folder.exists()
    try:
        world.once(lambda: _prepare(given, run))
        yield _task(given, run)
    except BaseException:
        if world.first and not given["resume"] and not run.config.exists():
            shutil.rmtree(run.folder / TEXT, ignore_errors=True)
            if fresh:
                shutil.rmtree(run.folder, ignore_errors=True)
        raise


def _prepare(given: Mapping[str, Any], run: Run) -> None:
    if given["resume"]:
        read_run(run.folder)
        return
    _refuse_used(run)
    source = given.get("data", "stdlib")
    # Whatever is wrong with the sizes is said before minutes are spent on the text.
    chosen_training(given, None)
    size = given.get("vocab_size", VOCABULARY) if given.get("tokenizer") == "bpe" else 256
    chosen_model(given, size, None)
    tokenizer = _tokenizer(given, source)
    options = {name: given[name] for name in ("validation", "limit_bytes") if name in given}
    with telling("reading the text") as progress:
        prepare(source, tokenizer, run.folder / TEXT, progress=progress, **options)
    tokenizer.save(run.folder / TEXT)


def _refuse_used(run: Run) -> None:
    if run.folder.exists() and not run.folder.is_dir():
        raise ValueError(f"train: '{run.folder}' is a file, but a folder was wanted. Choose another --out.")
    if run.config.exists():
        raise ValueError(
            f"train: '{run.folder}' already holds a run, {run.step} steps long. Go on with --resume, or choose another "
            "--out."
        )


def _tokenizer(given: Mapping[str, Any], source: str) -> Tokenizer:
    kind = given.get("tokenizer", "bytes")
    if kind not in ("bytes", "bpe"):
        raise ValueError(f"train: --tokenizer came as {kind!r}, but bytes or bpe was wanted.")
    if kind == "bytes":
        if "vocab_size" in given and given["vocab_size"] != 256:
            raise ValueError(
                f"train: --vocab-size {given['vocab_size']} came with --tokenizer bytes, whose vocabulary is the 256 "
                "bytes. Add --tokenizer bpe, or leave it out."
            )
        return Tokenizer.bytes()
    limit = min(given.get("limit_bytes", BYTES_FOR_TOKENIZER), BYTES_FOR_TOKENIZER)
    return Tokenizer.train(texts(source, limit_bytes=limit), vocab_size=given.get("vocab_size", VOCABULARY))


def _task(given: Mapping[str, Any], run: Run) -> Task:
    stored = read_run(run.folder) if given["resume"] else None
    folder = run.folder / TEXT
    splits, tokenizer = open_splits(folder), Tokenizer.load(folder)
    model = chosen_model(given, splits.header.vocab_size, stored.model if stored else None)
    return Task(model, chosen_training(given, stored.training if stored else None), splits, tokenizer)
