"""The record of a run: one JSON object a line, in the order of the steps, none twice."""

import errno
import json
import os
from pathlib import Path
from typing import Any

from lavagna.atomic_file import atomic_file

Record = dict[str, Any]


class Log:
    """A file of records that is appended to as the run goes on, `{"step": 12, "loss": 2.5, ...}`.

    Opening it cuts off what came after `step`, the checkpoint that the run goes on from, and a line left half-written
    by a killed process: what is done again is not in the record twice. `last` holds the newest value under each name.
    """

    def __init__(self, path: Path, *, step: int = 0) -> None:
        kept = [record for record in read_log(path) if record["step"] <= step]
        self.last: Record = {name: value for record in kept for name, value in record.items()}
        self._path = path
        with atomic_file(path) as file:
            file.writelines(map(_line, kept))
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115

    def append(self, record: Record) -> None:
        """Write one record; the system has it when this returns, so that killing the process does not lose it.

        Raises `OSError` where the disk is full.
        """
        line = _line(record)
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self.last |= record

    def sync(self) -> None:
        """Wait until all records are on the disk, so that a power cut does not lose them either."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_log(path: Path) -> list[Record]:
    """The records of a log, without a last line that is not whole; none where there is no file."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


def _line(record: Record) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"
