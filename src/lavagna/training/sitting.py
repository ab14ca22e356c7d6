"""One sitting of a training: from the newest checkpoint to the last update."""

import time
from pathlib import Path
from typing import NamedTuple

from lavagna.data import Splits, Tokenizer
from lavagna.models import LanguageModel
from lavagna.training.checkpoint import save_checkpoint
from lavagna.training.distributed import World
from lavagna.training.log import Record
from lavagna.training.objective import Validation, bits_per_byte
from lavagna.training.report import Report
from lavagna.training.run import Run
from lavagna.training.trainer import NonFiniteLossError, Trainer


class TrainResult(NamedTuple):
    """What a training ended with. Losses are in nats a token, None where there was nothing to judge by."""

    model: LanguageModel
    folder: Path
    checkpoint: Path
    step: int
    loss: float | None
    validation_loss: float | None
    validation_bits_per_byte: float | None


class Sitting:
    """One go at a run, from its newest checkpoint to the last step."""

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        texts: Splits,
        tokenizer: Tokenizer | None,
        world: World,
        *,
        seconds: float | None,
        quiet: bool,
    ) -> None:
        self.run, self.trainer, self.texts, self.tokenizer, self.world = run, trainer, texts, tokenizer, world
        self.config = trainer.config
        self.report = Report(run, self.config.steps, quiet) if world.first else None
        self.validation = Validation(texts.validation, self.config)
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
        self._tell(
            step=step,
            loss=update.loss,
            bits_per_byte=bits_per_byte(update.loss, self.texts.train.bytes_per_token),
            lr=update.lr,
            grad_norm=update.grad_norm,
            tokens_per_second=self.config.tokens_per_step / self._pace,
        )

    def _evaluate(self, step: int) -> None:
        if not self.validation.possible:
            return
        loss = self.validation.loss(self.trainer.model, self.world)
        if not abs(loss) < float("inf"):
            raise NonFiniteLossError(f"the validation loss is {loss} at step {step}")
        bits = bits_per_byte(loss, self.texts.validation.bytes_per_token)
        self._tell(step=step, validation_loss=loss, validation_bits_per_byte=bits)

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
            loss=last.get("loss"),
            validation_loss=last.get("validation_loss"),
            validation_bits_per_byte=last.get("validation_bits_per_byte"),
        )
