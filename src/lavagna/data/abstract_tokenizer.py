"""What every tokenizer answers, and what follows from the bytes of its tokens alone."""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np


class AbstractTokenizer(ABC):
    """Text to ids and back, over a vocabulary of byte strings.

    `eos_id` is the document border, or None; `byte_level` says that every token stands for bytes, so that `token_bytes`
    works; `in_pieces` that a text cut where `Document.pieces` cuts encodes as the whole does. Two tokenizers are equal
    where their `fingerprint` is.

    A kind sets the five attributes, encodes, saves and says its fingerprint; it defines `__reduce__` so that it can go
    to another process.
    """

    vocab_size: int
    eos_id: int | None
    byte_level: bool
    in_pieces: bool
    _bytes: Mapping[int, bytes] | None

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text. Raises `ValueError` for lone surrogates, which no bytes of UTF-8 stand for."""

    @abstractmethod
    def encode_many(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """The ids of each text as an array of unsigned integers."""

    @abstractmethod
    def save(self, path: str | Path) -> Path:
        """Write the tokenizer whole or not at all: into the folder `path`, or as a file of that name."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash of all that decides how text is encoded."""

    def decode(self, ids) -> str:
        """The text of a list, array or tensor of ids.

        Raises `ValueError` for an id outside the vocabulary, naming it and the size.
        """
        assert self._bytes is not None, "a kind without bytes decodes in its own way"
        return b"".join([self._bytes[id] for id in self._checked_ids(ids)]).decode("utf-8", "replace")

    def token_bytes(self, id: int) -> bytes:
        """The bytes that one token stands for, perhaps part of a character."""
        id = self._checked("token_bytes", id)
        if self._bytes is None:
            raise ValueError("token_bytes: this tokenizer is not byte-level, its tokens have no bytes. Use decode.")
        return self._bytes[id]

    def byte_lengths(self) -> np.ndarray | None:
        """Bytes of text per id, 0 for the document border; None if not byte-level."""
        if self._bytes is None:
            return None
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for id, token in self._bytes.items():
            lengths[id] = len(token)
        if self.eos_id is not None:
            lengths[self.eos_id] = 0
        return lengths

    def _checked_ids(self, ids) -> list[int]:
        ids = ids.tolist() if hasattr(ids, "tolist") else ids
        return [self._checked("decode", id) for id in ids]

    def _checked(self, call: str, id) -> int:
        try:
            id = operator.index(id)
        except TypeError:
            raise ValueError(f"{call}: {id!r} is not an id. Give whole numbers, in one dimension.") from None
        if not 0 <= id < self.vocab_size or (self._bytes is not None and id not in self._bytes):
            raise ValueError(
                f"{call}: id {id} is outside the vocabulary of {self.vocab_size}. Is it another tokenizer's?"
            )
        return id

    def __eq__(self, other) -> bool:
        return isinstance(other, AbstractTokenizer) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size}, eos_id={self.eos_id})"


def utf8(text: str) -> bytes:
    """The bytes of a text to encode. Raises `ValueError` with the place of a lone surrogate, which has none."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"encode: the text has a lone surrogate, {text[error.start]!r}, at character {error.start}, "
            "and UTF-8 has no bytes for it. Remove it or replace it with U+FFFD."
        ) from None
