"""The reports of a run: the log, TensorBoard, the loss curve, and what a person sees."""

import time

from lavagna.training.display import open_display
from lavagna.training.log import Log, Record, read_log
from lavagna.training.loss_curve import draw_loss_curve
from lavagna.training.run import Run

SECONDS_BETWEEN_PICTURES = 20.0


class Report:
    """Where the first process of a run tells how it goes. The log is the truth; the others are views of it."""

    def __init__(self, run: Run, steps: int, quiet: bool) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self._run = run
        self._drawn = time.monotonic()
        self._log = Log(run.log, step=run.step)
        # What an earlier sitting told beyond its last checkpoint is told again, and TensorBoard must forget it.
        self._tensorboard = SummaryWriter(str(run.tensorboard), purge_step=run.step + 1)
        self._display = None if quiet else open_display(steps, run.step)

    @property
    def last(self) -> Record:
        """The newest value under each name of the log."""
        return self._log.last

    def tell(self, record: Record) -> None:
        """Tell of an update (it has a `loss`) or of an evaluation (it has a `validation_loss`)."""
        self._log.append(record)
        for name, value in record.items():
            if name != "step":
                self._tensorboard.add_scalar(name, value, record["step"])
        if self._display:
            self._display.tell(record)

    def sync(self) -> None:
        """Bring the log to the disk."""
        self._log.sync()

    def draw(self) -> None:
        """Draw the loss curve of all that the log has."""
        draw_loss_curve(read_log(self._run.log), self._run.picture)
        self._drawn = time.monotonic()

    def draw_now_and_then(self) -> None:
        """Draw the loss curve unless that was done a moment ago."""
        if time.monotonic() - self._drawn > SECONDS_BETWEEN_PICTURES:
            self.draw()

    def close(self) -> None:
        """Close the log, TensorBoard's file and the display."""
        self._log.close()
        self._tensorboard.close()
        if self._display:
            self._display.close()
