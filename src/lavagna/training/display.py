"""What a person sees while a model trains: a bar in a terminal, plain lines elsewhere."""

import os
import sys
import time

from lavagna.training.log import Record

SECONDS_BETWEEN_LINES = 5.0


class Lines:
    """Plain lines on stderr, at most one in five seconds, and one for each evaluation: for files, pipes and CI."""

    def __init__(self, steps: int, step: int) -> None:
        self._steps = steps
        self._first = step
        self._start = self._printed = time.monotonic()

    def tell(self, record: Record) -> None:
        """Print an evaluation at once, an update if it is time, or if it is the first or the last."""
        if "validation_loss" in record:
            self._print(record, _numbers(record, "validation_"))
            return
        now = time.monotonic()
        if now - self._printed >= SECONDS_BETWEEN_LINES or record["step"] in (self._first + 1, self._steps):
            self._printed = now
            left = (now - self._start) / (record["step"] - self._first) * (self._steps - record["step"])
            self._print(record, f"{_numbers(record)}  {_clock(left)} left")

    def close(self) -> None:
        """Nothing to do: each line is complete."""

    def _print(self, record: Record, text: str) -> None:
        width = len(str(self._steps))
        print(f"step {record['step']:{width}d}/{self._steps}  {text}", file=sys.stderr, flush=True)


class Bar:
    """A progress bar in the terminal, with the numbers of the last update and of the last evaluation."""

    def __init__(self, steps: int, step: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        # Sized to fit in eighty columns, where rich would else cut the numbers short.
        columns = [
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
        ]
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("", total=steps, completed=step)
        self._validation = ""
        self._progress.start()

    def tell(self, record: Record) -> None:
        """Move the bar and its numbers on; those of an evaluation stay beside it until the next one."""
        if "validation_loss" in record:
            right = record.get("validation_accuracy")
            self._validation = f"val {record['validation_loss']:.3f}  " + (
                "" if right is None else f"{right:.1%} right  "
            )
        else:
            bits = f"{record['bits_per_byte']:.2f} bits/byte  " if "bits_per_byte" in record else ""
            numbers = f"loss {record['loss']:.3f}  {self._validation}{bits}{_speed(record, 'tok/s', 'seq/s')}"
            self._progress.update(self._task, completed=record["step"], description=numbers)

    def close(self) -> None:
        """Leave the bar where it stands and give the terminal back."""
        self._progress.stop()


def open_display(steps: int, step: int) -> Bar | Lines:
    """A bar where stderr is a terminal and this is not CI, else plain lines."""
    return Bar(steps, step) if sys.stderr.isatty() and not os.environ.get("CI") else Lines(steps, step)


def _numbers(record: Record, prefix: str = "") -> str:
    text = f"{prefix.replace('_', ' ')}loss {record[prefix + 'loss']:.4f}"
    if (bits := record.get(prefix + "bits_per_byte")) is not None:
        text += f"  {bits:.3f} bits/byte"
    if (right := record.get(prefix + "accuracy")) is not None:
        text += f"  {right:.1%} right"
    return f"{text}  {_speed(record, 'tokens/s', 'sequences/s')}".rstrip()


def _speed(record: Record, tokens: str, sequences: str) -> str:
    units = {"tokens_per_second": tokens, "sequences_per_second": sequences}
    return "".join(f"{record[name]:,.0f} {unit}" for name, unit in units.items() if name in record)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
