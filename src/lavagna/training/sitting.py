"""One sitting of a training: from the newest checkpoint to the last update."""

import time
from pathlib import Path
from typing import Any, NamedTuple

from lavagna.data import AbstractTokenizer
from lavagna.training.checkpoint import save_checkpoint
from lavagna.training.distributed import World
from lavagna.training.log import Record
from lavagna.training.report import Report
from lavagna.training.run import Run
from lavagna.training.trainer import NonFiniteLossError, Trainer

MEASURES = ("loss", "validation_loss", "validation_bits_per_byte", "validation_accuracy")


class TrainResult(NamedTuple):
    """What a training ended with: the model, and the last losses in nats a token or, of a classifier, a sequence.

    What was held out is judged in bits a byte or by the share of right answers; None is what there was not.
    """

    model: Any
    folder: Path
    checkpoint: Path
    step: int
    loss: float | None
    validation_loss: float | None
    validation_bits_per_byte: float | None = None
    validation_accuracy: float | None = None


class Sitting:
    """One go at a run, from its newest checkpoint to the last step."""

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        tokenizer: AbstractTokenizer | None,
        world: World,
        *,
        seconds: float | None,
        quiet: bool,
    ) -> None:
        self.run, self.trainer, self.tokenizer, self.world = run, trainer, tokenizer, world
        self.config = trainer.config
        self.report = Report(run, self.config.steps, quiet) if world.first else None
        self._pace: float | None = None
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._start = time.monotonic() - (self.report.last.get("seconds", 0.0) if self.report else 0.0)

    def train(self) -> TrainResult:
        """Update, evaluate and save until the last step, or until time is up. Raises as `train` does."""
        for step in range(self.run.step + 1, self.config.steps + 1):
            try:
                self._update(step)
                ended = step == self.config.steps or self._late()
                if ended or step % self.config.evaluate_every == 0:
                    self._evaluate(step)
                if ended or step % self.config.save_every == 0:
                    # What is saved must be good to go on from: the next update's loss is looked at first.
                    self.trainer.check(step)
                    self.world.once(lambda step=step: self._save(step))
            except NonFiniteLossError as error:
                raise NonFiniteLossError(self._farewell(error)) from None
            if ended:
                break
        return self._result()

    def close(self) -> None:
        """Close what the first process writes to and gives the terminal back."""
        if self.report:
            self.report.close()

    def _late(self) -> bool:
        deadline = self._deadline
        # One clock decides for all processes.
        return deadline is not None and self.world.once(lambda: time.monotonic() >= deadline)

    def _update(self, step: int) -> None:
        begin = time.monotonic()
        update = self.trainer.update(step - 1)
        taken = time.monotonic() - begin
        self._pace = taken if self._pace is None else 0.9 * self._pace + 0.1 * taken
        objective = self.trainer.objective
        more = objective.told(update.loss) | {"lr": update.lr, "grad_norm": update.grad_norm}
        self._tell(step=step, loss=update.loss, **more, **{objective.speed: objective.per_update / self._pace})

    def _evaluate(self, step: int) -> None:
        measures = self.trainer.objective.judge(self.trainer.model, self.world)
        if not measures:
            return
        if not abs(loss := measures["validation_loss"]) < float("inf"):
            raise NonFiniteLossError(f"the validation loss is {loss} at step {step}")
        self._tell(step=step, **measures)

    def _save(self, step: int) -> None:
        assert self.report is not None
        self.report.sync()
        trainer, folder = self.trainer, self.run.checkpoints
        save_checkpoint(folder, step, trainer.model, trainer.optimizer, self.tokenizer, keep=self.config.keep)
        self.report.draw_now_and_then()

    def _end(self) -> Record:
        assert self.report is not None
        self.report.draw()
        return self.report.last

    def _tell(self, **record: float | int) -> None:
        if self.report:
            self.report.tell(record | {"seconds": round(time.monotonic() - self._start, 3)})

    def _farewell(self, error: NonFiniteLossError) -> str:
        if self.report:
            self.report.draw()
        kept = f"the last good checkpoint is {self.run.latest}" if self.run.latest else "there was no checkpoint yet"
        return f"train: {error}; training stopped, {kept}. Try a lower lr than {self.config.lr} or a longer warmup."

    def _result(self) -> TrainResult:
        last = self.world.once(self._end)
        assert self.run.latest is not None
        return TrainResult(
            model=self.trainer.model.eval(),
            folder=self.run.folder,
            checkpoint=self.run.latest,
            step=self.run.step,
            **{name: last.get(name) for name in MEASURES},
        )
