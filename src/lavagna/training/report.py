"""The reports of a run: the log, TensorBoard, the loss curve, and what a person sees."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lavagna.training.display import open_display
from lavagna.training.events import Events
from lavagna.training.log import Log, Record, read_log
from lavagna.training.loss_curve import draw_loss_curve
from lavagna.training.run import Run

SECONDS_BETWEEN_PICTURES = 20.0


class Report:
    """Where the first process of a run tells how it goes. The log is the truth; the others are views of it.

    Whatever can't be written raises `OSError` in one line that names it.
    """

    def __init__(self, run: Run, steps: int, quiet: bool) -> None:
        self._run = run
        self._drawn = time.monotonic()
        with _one_line(run.folder):
            self._log = Log(run.log, step=run.step)
            self._events = Events(run.tensorboard, step=run.step)
        self._display = None if quiet else open_display(steps, run.step)

    @property
    def last(self) -> Record:
        """The newest value under each name of the log."""
        return self._log.last

    def tell(self, record: Record) -> None:
        """Tell of an update (it has a `loss`) or of an evaluation (it has a `validation_loss`)."""
        with _one_line(self._run.folder):
            self._log.append(record)
            self._events.append(record)
        if self._display:
            self._display.tell(record)

    def sync(self) -> None:
        """Bring the log to the disk."""
        with _one_line(self._run.folder):
            self._log.sync()
            self._events.sync()

    def draw(self) -> None:
        """Draw the loss curve of all that the log has."""
        with _one_line(self._run.picture):
            draw_loss_curve(read_log(self._run.log), self._run.picture)
        self._drawn = time.monotonic()

    def draw_now_and_then(self) -> None:
        """Draw the loss curve unless that was done a moment ago."""
        if time.monotonic() - self._drawn > SECONDS_BETWEEN_PICTURES:
            self.draw()

    def close(self) -> None:
        """Close the log, TensorBoard's file and the display."""
        # A full disk has been told of by whatever met it first.
        with suppress(OSError):
            self._events.close()
        self._log.close()
        if self._display:
            self._display.close()


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise OSError(f"train: could not write to {path} ({reason}). Make room and resume.") from error
