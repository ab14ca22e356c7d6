"""A folder that appears, or replaces another, whole or not at all."""

import ctypes
import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lavagna.atomic_file import sync

_STALE_SECONDS = 600
# What Linux calls AT_FDCWD and RENAME_EXCHANGE.
_HERE, _EXCHANGE = -100, 2


@contextmanager
def whole_folder(path: Path, *, files: frozenset[str]) -> Iterator[Path]:
    """An empty folder to write `files` into, which takes the name `path` once it is complete and on the disk.

    Any exception removes it and leaves `path` as it was. A folder of that name is replaced in one exchange of names
    where the system has one (Linux), else in two renames; what else it holds than `files` moves into the new one. What
    a killed process left behind is removed by the next writer, ten minutes later.

    Raises `OSError` where `path` is a file, a link to itself, or the folder that the process works in.
    """
    if leads_to_itself(path):
        raise OSError(f"'{path}' is a link that leads back to itself. Remove it or give another name.")
    path = path.resolve()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"'{path}' is a file. Give the name of a folder.")
    if Path.cwd().is_relative_to(path):
        raise OSError(f"'{path}' is the folder this process works in. Give a folder of its own inside it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in path.parent.glob(f".{path.name}.*.partial"):
        with suppress(OSError):
            if time.time() - stale.stat().st_mtime > _STALE_SECONDS:
                _discard(stale, files)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    partial.mkdir()
    try:
        yield partial
        for file in [*partial.iterdir(), partial]:
            sync(file)
        old = _replace(partial, path)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if old is not None:
        _move_others(old, path, files)
        _discard(old, files)
    sync(path.parent)


def leads_to_itself(path: Path) -> bool:
    """Whether a path is in a circle of links. pathlib says that there is nothing, or fails, as its version has it."""
    try:
        path.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _replace(new: Path, path: Path) -> Path | None:
    """Give `new` the name `path`; where the folder that had it is now, if there was one."""
    if not path.exists():
        os.rename(new, path)
        return None
    if _exchanged(new, path):
        return new
    aside = new.with_suffix(".old")
    os.rename(path, aside)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(aside, path)
        raise
    return aside


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step, and say whether this system could."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    return call is not None and call(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0


def _move_others(old: Path, new: Path, files: frozenset[str]) -> None:
    for entry in old.iterdir():
        if entry.name not in files and not (new / entry.name).exists():
            os.rename(entry, new / entry.name)


def _discard(folder: Path, files: frozenset[str]) -> None:
    # Named files only: whatever else is in there is somebody's, and keeps its folder.
    for name in files:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()
