"""From a source of text to a token file, in one pass and with bounded memory."""

import hashlib
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

import numpy as np

from lavagna.atomic_file import atomic_file
from lavagna.data.abstract_tokenizer import AbstractTokenizer
from lavagna.data.document import Document
from lavagna.data.source import list_files, read_listing
from lavagna.data.tokens import HEADER_BYTES, TOKENS, Header, Splits, open_splits, token_dtype

Progress = Callable[[int, int], None]
# An encoded token takes about a hundred bytes of memory until it is written.
_CHARACTERS_AT_ONCE = 1 << 20


def prepare(
    source: str | os.PathLike,
    tokenizer: AbstractTokenizer,
    folder: str | os.PathLike,
    *,
    validation: float | int = 0.05,
    limit_bytes: int | None = None,
    progress: Progress | None = None,
) -> Splits:
    """Encode a source into `folder/tokens.bin`, unless that already holds this very text, and map it.

    Documents follow one another in "mixed" order (see `documents`), each ended by the tokenizer's document border if it
    has one. The last `validation` of the tokens are the validation part. It starts at the document border nearest to
    that share if this changes its size by less than half, else right there, inside a document.

    The file is written whole or not at all. What it holds is told by hashes of the text and the tokenizer, so a source
    that changed is encoded anew; the hash reads all of it. `progress` is called with bytes done and bytes in all.
    Sources and `limit_bytes` are those of `documents`. Memory: tens of MB (some hundreds with a BPE on text without
    spaces) and 8 bytes a document, whatever the length. Several processes may prepare the same folder at once.

    Raises what `documents` raises; `ValueError` for a share outside [0, 1); `OSError` where the file cannot be written.
    """
    if not 0 <= validation < 1:
        raise ValueError(f"prepare: validation is {validation}. Give a share of the text, from 0 to below 1.")
    listing = list_files(source)
    total = sum(path.stat().st_size for _, path in listing.files)
    task = _Task(tokenizer, float(validation), limit_bytes, listing.skipped, min(total, limit_bytes or total), progress)

    def found() -> Iterator[Document]:
        return read_listing(listing, limit_bytes=limit_bytes, order="mixed")

    if not _holds(Path(folder), task, found):
        with atomic_file(Path(folder) / TOKENS) as file:
            _write(file, task, found())
    return open_splits(folder)


@dataclass(frozen=True)
class _Task:
    tokenizer: AbstractTokenizer
    validation: float
    limit_bytes: int | None
    skipped: int
    total: int
    progress: Progress | None


@dataclass
class _Reading:
    """The documents as pieces of text, with the hash of all that was read and the sizes so far."""

    documents: Iterator[Document]
    count: int = 0
    size: int = 0
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)

    def pieces(self, *, whole: bool = False) -> Iterator[tuple[str, bool]]:
        """Pieces of text, or whole documents, and after each document an empty piece marked as its end."""
        for document in self.documents:
            self.digest.update(f"{document.size} ".encode())
            texts = document.pieces()
            for text in ["".join(texts)] if whole else texts:
                data = text.encode("utf-8")
                self.digest.update(data)
                self.size += len(data)
                yield text, False
            self.count += 1
            yield "", True

    def hash(self) -> str:
        return self.digest.hexdigest()


def _holds(folder: Path, task: _Task, found: Callable[[], Iterator[Document]]) -> bool:
    try:
        header = open_splits(folder).header
    except (OSError, ValueError):
        return False
    asked = (task.tokenizer.fingerprint, task.tokenizer.vocab_size, task.validation, task.limit_bytes)
    if asked != (header.tokenizer, header.vocab_size, header.validation, header.limit_bytes):
        return False
    reading = _Reading(found())
    for _ in reading.pieces():
        pass
    return reading.hash() == header.source


def _write(file: BinaryIO, task: _Task, found: Iterator[Document]) -> None:
    tokenizer, dtype = task.tokenizer, token_dtype(task.tokenizer.vocab_size)
    # The header is known last and stands first.
    file.write(bytes(HEADER_BYTES))
    reading = _Reading(found)
    ends = _write_ids(file, task, reading, dtype)
    if reading.size == 0:
        raise ValueError("prepare: the source holds no text at all. Give one that does.")
    tokens = ends[-1]
    split = _split_point(np.frombuffer(ends, dtype=np.uint64).astype(np.int64), tokens, task.validation)
    train_bytes = _bytes_before(file, split, tokenizer, dtype, reading.size * split / tokens)
    header = Header(
        tokens=tokens,
        split=split,
        vocab_size=tokenizer.vocab_size,
        train_bytes=train_bytes,
        validation_bytes=reading.size - train_bytes,
        documents=reading.count,
        skipped=task.skipped,
        source=reading.hash(),
        tokenizer=tokenizer.fingerprint,
        validation=task.validation,
        limit_bytes=task.limit_bytes,
    )
    file.seek(0)
    file.write(header.to_bytes())


def _write_ids(file: BinaryIO, task: _Task, reading: _Reading, dtype: np.dtype) -> array:
    """Write the ids of all documents; where each document ends, counted in tokens."""
    ends, tokens, eos = array("Q"), 0, task.tokenizer.eos_id
    for some in _grouped(reading.pieces(whole=not task.tokenizer.in_pieces)):
        encoded = task.tokenizer.encode_many([text for text, _ in some])
        for ids, (_, ended) in zip(encoded, some, strict=True):
            file.write(ids.astype(dtype).tobytes())
            tokens += len(ids)
            if ended:
                file.write(b"" if eos is None else np.array(eos, dtype).tobytes())
                tokens += eos is not None
                ends.append(tokens)
        if task.progress is not None:
            task.progress(min(reading.size, task.total), task.total)
    return ends


def _grouped(pieces: Iterator[tuple[str, bool]]) -> Iterator[list[tuple[str, bool]]]:
    group, characters = [], 0
    for piece in pieces:
        group.append(piece)
        # The end of a document weighs a little too, or a million empty ones would make one group.
        characters += len(piece[0]) + 1
        if characters >= _CHARACTERS_AT_ONCE:
            yield group
            group, characters = [], 0
    if group:
        yield group


def _split_point(ends: np.ndarray, tokens: int, validation: float) -> int:
    held = min(tokens // 2, max(2, round(tokens * validation))) if validation else 0
    wanted = tokens - held
    nearest = int(ends[np.abs(ends - wanted).argmin()])
    return nearest if 2 * abs(nearest - wanted) < held else wanted


def _bytes_before(file: BinaryIO, split: int, tokenizer: AbstractTokenizer, dtype: np.dtype, estimate: float) -> int:
    """Bytes of text in the first `split` tokens; an estimate where tokens are not bytes."""
    lengths = tokenizer.byte_lengths()
    if lengths is None:
        return round(estimate)
    file.flush()
    file.seek(HEADER_BYTES)
    counts = np.zeros(len(lengths), dtype=np.int64)
    while split > 0:
        ids = np.frombuffer(file.read(min(split, 1 << 20) * dtype.itemsize), dtype=dtype)
        counts += np.bincount(ids, minlength=len(lengths))
        split -= len(ids)
    return int(counts @ lengths)
