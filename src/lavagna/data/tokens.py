"""Token ids on disk: one file, memory-mapped, with a part to train on and a part to judge by."""

import json
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np

TOKENS = "tokens.bin"
HEADER_BYTES = 4096
_FORMAT = "lavagna tokens 1"


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest unsigned integer, little-endian, that holds every id below `vocab_size`."""
    widths = {"u1": 1 << 8, "<u2": 1 << 16, "<u4": 1 << 32}
    return np.dtype(next(name for name, ids in widths.items() if vocab_size <= ids))


@dataclass(frozen=True)
class Header:
    """What a token file says of itself. `split` is the first validation token; sizes of text are in bytes."""

    tokens: int
    split: int
    vocab_size: int
    train_bytes: int
    validation_bytes: int
    documents: int
    skipped: int
    source: str
    tokenizer: str
    validation: float
    limit_bytes: int | None

    def to_bytes(self) -> bytes:
        """One line of JSON, padded with spaces to `HEADER_BYTES`."""
        line = json.dumps({"format": _FORMAT, "dtype": token_dtype(self.vocab_size).str, **asdict(self)})
        return line.encode("ascii").ljust(HEADER_BYTES - 1) + b"\n"


class TokenFile:
    """The ids of one split, memory-mapped and read-only: `len(tokens)`, `tokens[start:stop]`.

    `ids` is the flat array, in the narrowest dtype for `vocab_size`. `byte_count` is the UTF-8 text that the ids stand
    for, and `bytes_per_token` turns a loss per token into one per byte; document borders are tokens of 0 bytes.
    """

    def __init__(self, path: Path, start: int, stop: int, *, vocab_size: int, byte_count: int):
        dtype = token_dtype(vocab_size)
        self.path = path
        self.vocab_size = vocab_size
        self.byte_count = byte_count
        self.ids = np.empty(0, dtype)
        # An empty file region cannot be mapped.
        if stop > start:
            offset = HEADER_BYTES + start * dtype.itemsize
            self.ids = np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=(stop - start,))

    @property
    def bytes_per_token(self) -> float:
        """Mean bytes of text per token, the borders between documents included; NaN without tokens."""
        return self.byte_count / len(self) if len(self) else float("nan")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: slice | int):
        return self.ids[index]

    def __repr__(self) -> str:
        return f"TokenFile('{self.path}', tokens={len(self)}, vocab_size={self.vocab_size})"


class Splits(NamedTuple):
    """The tokens to train on, the tokens to judge by, and the header of the file that holds both."""

    train: TokenFile
    validation: TokenFile
    header: Header


def open_splits(folder: str | PathLike) -> Splits:
    """Map the token file that `prepare` left in a folder. Nothing is read but its first 4096 bytes.

    Raises `FileNotFoundError` where there is none and `ValueError` where it is not a whole token file.
    """
    path = Path(folder) / TOKENS
    if not path.is_file():
        raise FileNotFoundError(f"open_splits: there is no '{path}'. Make it with prepare(source, tokenizer, folder).")
    header = _read_header(path)

    def part(start: int, stop: int, byte_count: int) -> TokenFile:
        return TokenFile(path, start, stop, vocab_size=header.vocab_size, byte_count=byte_count)

    train = part(0, header.split, header.train_bytes)
    return Splits(train, part(header.split, header.tokens, header.validation_bytes), header)


def _read_header(path: Path) -> Header:
    with open(path, "rb") as file:
        line = file.read(HEADER_BYTES)
    try:
        fields = json.loads(line)
        known, dtype = fields.pop("format") == _FORMAT, fields.pop("dtype")
        header = Header(**fields)
    except (ValueError, TypeError, KeyError, AttributeError):
        known, dtype, header = False, None, None
    if not known or header is None or dtype != token_dtype(header.vocab_size).str:
        raise ValueError(f"open_splits: '{path}' is not a token file of this version. Remove it and prepare again.")
    wanted = HEADER_BYTES + header.tokens * np.dtype(dtype).itemsize
    if path.stat().st_size != wanted:
        raise ValueError(
            f"open_splits: '{path}' has {path.stat().st_size} bytes, but {header.tokens} tokens make {wanted}. "
            "Remove it and prepare again."
        )
    return header
