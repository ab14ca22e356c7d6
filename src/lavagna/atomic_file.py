"""A file that appears whole or not at all."""

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_STALE_SECONDS = 600


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a binary file, for writing and reading, that takes the name `path` only once it is complete.

    The bytes go to a hidden sibling, reach the disk (fsync), and are then renamed over `path`; whoever holds the old
    file open keeps it. Any exception removes the sibling and leaves `path` as it was. A sibling that a killed process
    left behind is removed by the next writer, ten minutes after its last byte.

    Raises `OSError` in one line where the disk is full, a quota is used up or the file grows beyond its limit.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path)
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        with open(partial, "x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            reason = f"{error.strerror}: nothing was written. Free some space or choose another folder"
            raise OSError(error.errno, reason, str(path)) from error
        raise
    # Not every system can open a folder.
    with suppress(OSError):
        sync(path.parent)


def _remove_stale(path: Path) -> None:
    for partial in path.parent.glob(f".{path.name}.*.partial"):
        # Another process may be writing the same file, or sweeping it away, at this very moment.
        with suppress(OSError):
            if time.time() - partial.stat().st_mtime > _STALE_SECONDS:
                partial.unlink()


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk: a rename survives a power cut only after its folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
