"""The record of a run as TensorBoard reads it."""

import os
import socket
import time
from pathlib import Path
from typing import Any

from lavagna.training.log import Record


class Events:
    """A new file of scalars in TensorBoard's folder of a run.

    `step` is the checkpoint that the run goes on from: what earlier files tell beyond it, TensorBoard forgets. Written
    by the calling thread, so that a full disk is an `OSError` there and then.
    """

    def __init__(self, folder: Path, *, step: int = 0) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        # Their classes are made when they are imported, where a type checker can't see them.
        self._Event: Any = vars(event_pb2)["Event"]
        self._Summary: Any = vars(summary_pb2)["Summary"]
        start = vars(event_pb2)["SessionLog"](status=vars(event_pb2)["SessionLog"].START)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns()}.{socket.gethostname()}.{os.getpid()}"
        self._file = open(folder / name, "wb")  # noqa: SIM115
        self._writer = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        self._write(step=step + 1, session_log=start)

    def append(self, record: Record) -> None:
        """Write each number of a record as a scalar under its name."""
        numbers = [(name, value) for name, value in record.items() if name != "step"]
        values = [self._Summary.Value(tag=name, simple_value=value) for name, value in numbers]
        self._write(step=record["step"], summary=self._Summary(value=values))

    def sync(self) -> None:
        """Hand all records to the system, where killing the process does not lose them."""
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, **content: Any) -> None:
        self._writer.write(self._Event(wall_time=time.time(), **content).SerializeToString())
