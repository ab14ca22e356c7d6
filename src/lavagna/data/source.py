"""What text there is in a file, a folder, or Python's own standard library."""

import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from lavagna.data.document import Document
from lavagna.data.json_lines import JSON_LINES, json_lines

STDLIB = "stdlib"
# The file that says what a folder is, and how the names of our own formats begin.
CONFIG, OURS = "config.json", "lavagna-"
_BOM = b"\xef\xbb\xbf"
_PROBE = 1 << 16

# Tests, tables and what only some builds or versions have: the rest is close to the same text on every machine.
_NOT_STDLIB = {
    "site-packages", "dist-packages", "test", "tests", "idle_test", "idlelib", "lib2to3", "distutils", "ensurepip",
    "turtledemo", "tkinter", "pydoc_data", "encodings", "sitecustomize.py", "usercustomize.py", "__pycache__",
}  # fmt: skip


class Listing(NamedTuple):
    """The text files of a source, as (name, path) sorted by name, and how many binary files were passed over."""

    files: tuple[tuple[str, Path], ...]
    skipped: int


def documents(
    source: str | os.PathLike, *, limit_bytes: int | None = None, order: str = "sorted"
) -> Iterator[Document]:
    """The documents of a source, one by one.

    `source` is a text file; a folder, whose text files are taken from all its depths but hidden ones and the runs and
    checkpoints that lavagna left there; or the word `stdlib`, Python's own standard library source without tests,
    tables of encodings and parts that not every machine has (a folder of that name is `./stdlib`). A file is one
    document; in a .jsonl file every line is one, its `text`.

    Text is UTF-8 and is kept byte for byte, CR LF too; only a byte order mark at the start of a file is dropped. A file
    is binary if its first 64 KiB hold a NUL or are not UTF-8; in a folder such files are passed over, like empty ones.

    `order` is "sorted", by name, or "mixed", by a hash of the name: always the same, and any beginning of it is a fair
    sample. `limit_bytes` stops after so many bytes and cuts the last document there.

    Raises `FileNotFoundError` where there is nothing, `ValueError` for a file that is empty or binary and for a folder
    without text.
    """
    if limit_bytes is not None and limit_bytes < 1:
        raise ValueError(f"documents: limit_bytes is {limit_bytes}. Give a positive number, or None for all the text.")
    if order not in ("sorted", "mixed"):
        raise ValueError(f"documents: order is {order!r}. Give 'sorted' or 'mixed'.")
    return read_listing(list_files(source), limit_bytes=limit_bytes, order=order)


def texts(source: str | os.PathLike, *, limit_bytes: int | None = None) -> Iterator[str]:
    """The text of a source in mixed order and in pieces, to train a tokenizer on. Arguments as in `documents`."""
    for document in documents(source, limit_bytes=limit_bytes, order="mixed"):
        yield from document.pieces()


def list_files(source: str | os.PathLike) -> Listing:
    """The text files that `documents` would read. Raises as it does."""
    root = Path(sysconfig.get_path("stdlib")) if source == STDLIB else Path(source)
    if root.is_file():
        return Listing(((root.name, _checked_file(root)),), 0)
    if not root.is_dir():
        kind = "is neither a file nor a folder" if root.exists() else "does not exist"
        raise FileNotFoundError(
            f"documents: '{source}' {kind}. Give a text file, a folder of text files, or the word {STDLIB}."
        )
    found = sorted(_walk(root, python_only=source == STDLIB), key=lambda file: os.fsencode(file[0]))
    filled = [(name, path) for name, path in found if path.stat().st_size > 0]
    files = tuple((name, path) for name, path in filled if _is_text(path))
    skipped = len(filled) - len(files)
    if not files:
        raise ValueError(
            f"documents: folder '{source}' has no text: of {len(found)} files {skipped} are binary, the others empty; "
            "lavagna's own runs and checkpoints don't count. Give one that has text files in UTF-8."
        )
    return Listing(files, skipped)


def read_listing(listing: Listing, *, limit_bytes: int | None, order: str) -> Iterator[Document]:
    """The documents of files already listed, as `documents` gives them."""
    return _limited(_all_documents(listing, order), limit_bytes)


def _all_documents(listing: Listing, order: str) -> Iterator[Document]:
    files = listing.files if order == "sorted" else sorted(listing.files, key=_name_hash)
    for name, path in files:
        if path.suffix == JSON_LINES:
            yield from json_lines(name, path)
        else:
            start = len(_BOM) if _starts_with_bom(path) else 0
            yield Document(name, path.stat().st_size - start, partial(_open_at, path, start))


def _limited(found: Iterator[Document], limit: int | None) -> Iterator[Document]:
    for document in found:
        if limit is None:
            yield document
            continue
        if document.size >= limit:
            yield replace(document, size=limit, whole=document.size == limit)
            return
        limit -= document.size
        yield document


def _walk(root: Path, *, python_only: bool) -> Iterator[tuple[str, Path]]:
    for folder, below, names in os.walk(root):
        if CONFIG in names and _is_ours(Path(folder, CONFIG)):
            below.clear()
            continue
        below[:] = [name for name in below if not name.startswith(".") and not (python_only and _not_library(name))]
        for name in names:
            path = Path(folder, name)
            if name.startswith(".") or not path.is_file():
                continue
            if not python_only or (name.endswith(".py") and not _not_library(name)):
                yield path.relative_to(root).as_posix(), path


def _is_ours(config: Path) -> bool:
    """Whether a configuration is that of a run or a checkpoint of ours: what lies beside it is no text."""
    try:
        content = json.loads(config.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and str(content.get("format", "")).startswith(OURS)


def _not_library(name: str) -> bool:
    return name in _NOT_STDLIB or name.startswith(("_sysconfigdata", "config-"))


def _name_hash(file: tuple[str, Path]) -> bytes:
    # fsencode gives the name's bytes back whatever the locale took them for.
    return hashlib.sha256(os.fsencode(file[0])).digest()


def _checked_file(path: Path) -> Path:
    if path.stat().st_size == 0 or (path.stat().st_size == len(_BOM) and _starts_with_bom(path)):
        raise ValueError(f"documents: file '{path}' is empty. Give a file that has text.")
    if not _is_text(path):
        raise ValueError(f"documents: file '{path}' is binary, or text in another encoding. Give text in UTF-8.")
    return path


def _is_text(path: Path) -> bool:
    with open(path, "rb") as file:
        head = file.read(_PROBE)
        rest = file.read(3)
    if b"\0" in head:
        return False
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A character may straddle the border; `Document` judges it when it reads on.
        return bool(rest) and error.start > len(head) - 4 and error.reason == "unexpected end of data"
    return True


def _starts_with_bom(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_BOM)) == _BOM


def _open_at(path: Path, start: int) -> BinaryIO:
    file = path.open("rb")
    file.seek(start)
    return file
