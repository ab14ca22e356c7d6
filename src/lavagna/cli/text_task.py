"""A text to learn from, in a run's folder."""

import shutil
from collections.abc import Mapping
from typing import Any

from lavagna.cli.choices import chosen_model, chosen_training
from lavagna.cli.progress import telling
from lavagna.cli.task import Task
from lavagna.data import Tokenizer, open_splits, prepare, texts
from lavagna.data.source import STDLIB, list_files
from lavagna.models import ModelConfig
from lavagna.models.kinds import outline
from lavagna.training.run import Run, Settings

TEXT = "text"
ONLY = frozenset({"data", "tokenizer", "vocab_size", "limit_bytes", "context"})
# A vocabulary learned from more text is hardly another one.
BYTES_FOR_TOKENIZER = 20_000_000
VOCABULARY = 4096


def check_task(given: Mapping[str, Any]) -> None:
    """Raises `ValueError` or `OSError` where no text can be prepared as the options say, as far as a look shows it."""
    _check_model(given)
    _check_tokenizer(given)
    if (source := given.get("data", STDLIB)) != STDLIB:
        list_files(source)


def prepare_task(given: Mapping[str, Any], run: Run) -> None:
    """Encode the text that the options name into the run's folder."""
    source = given.get("data", STDLIB)
    _check_model(given)
    _check_tokenizer(given)
    tokenizer = _tokenizer(given, source)
    options = {name: given[name] for name in ("validation", "limit_bytes") if name in given}
    with telling("reading the text") as progress:
        prepare(source, tokenizer, run.folder / TEXT, progress=progress, **options)
    tokenizer.save(run.folder / TEXT)


def open_task(given: Mapping[str, Any], run: Run, stored: Settings | None) -> Task:
    """The text in the run's folder, and what the options and the run say of the rest."""
    folder = run.folder / TEXT
    splits, tokenizer = open_splits(folder), Tokenizer.load(folder)
    ends = {"vocab_size": splits.header.vocab_size}
    model = chosen_model(given, ModelConfig.kind, ends, stored.model if stored else None)
    return Task(model, chosen_training(given, stored.training if stored else None), splits, tokenizer)


def remove(run: Run) -> None:
    """Remove what `prepare_task` wrote."""
    shutil.rmtree(run.folder / TEXT, ignore_errors=True)


def _check_model(given: Mapping[str, Any]) -> None:
    size = given.get("vocab_size", VOCABULARY) if given.get("tokenizer") == "bpe" else 256
    outline(chosen_model(given, ModelConfig.kind, {"vocab_size": size}, None))


def _check_tokenizer(given: Mapping[str, Any]) -> None:
    kind = given.get("tokenizer", "bytes")
    if kind not in ("bytes", "bpe"):
        raise ValueError(f"train: --tokenizer came as {kind!r}, but bytes or bpe was wanted.")
    if kind == "bytes" and given.get("vocab_size", 256) != 256:
        raise ValueError(
            f"train: --vocab-size {given['vocab_size']} came with --tokenizer bytes, whose vocabulary is the 256 "
            "bytes. Add --tokenizer bpe, or leave it out."
        )


def _tokenizer(given: Mapping[str, Any], source: str) -> Tokenizer:
    if given.get("tokenizer", "bytes") == "bytes":
        return Tokenizer.bytes()
    limit = min(given.get("limit_bytes", BYTES_FOR_TOKENIZER), BYTES_FOR_TOKENIZER)
    return Tokenizer.train(texts(source, limit_bytes=limit), vocab_size=given.get("vocab_size", VOCABULARY))
