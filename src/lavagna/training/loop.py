"""Training from the first update to the last, in as many sittings as it takes."""

import time
from pathlib import Path
from typing import NamedTuple

import torch

from lavagna.data import Batches, Splits, Tokenizer
from lavagna.models import LanguageModel, ModelConfig
from lavagna.training.checkpoint import load_checkpoint, save_checkpoint
from lavagna.training.config import TrainConfig
from lavagna.training.distributed import World, join_world
from lavagna.training.log import Record
from lavagna.training.objective import Validation, bits_per_byte
from lavagna.training.report import Report
from lavagna.training.run import Run, Settings, open_run
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


def train(
    model: LanguageModel | ModelConfig,
    config: TrainConfig,
    texts: Splits,
    tokenizer: Tokenizer | None,
    folder: str | Path,
    *,
    resume: bool = False,
    device: torch.device | str | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train a language model and leave a run's folder: checkpoints, log, TensorBoard, loss curve.

    `model` is a config, whose parameters are then drawn from `config.seed`, or a model, trained as it stands and in
    place. With `resume` the run in the folder goes on from its newest checkpoint, to the same losses, bit for bit, as
    if it had never stopped; where there is none yet it starts. Under `torchrun` all processes train together, on the
    same global batches. `device` None is CUDA if there is one. `quiet` prints nothing.

    Raises `ValueError` on sizes that do not fit, on a run or checkpoint of other settings or another version, and, as
    `NonFiniteLossError`, where the loss is no longer a number: the newest checkpoint is then the last good one. Raises
    `OSError` in one line where the disk is full; older checkpoints stay.
    """
    with join_world(device) as world, torch.random.fork_rng(_devices(world)):
        batches = Batches(texts.train, batch=config.batch, context=config.context, seed=config.seed)
        world.share(config.batch)
        _check_vocabulary(model, texts)
        settings = _settings(model, config, texts, tokenizer)
        run = world.once(lambda: open_run(Path(folder), settings, resume=resume))
        torch.manual_seed(config.seed)
        model = (LanguageModel(model) if isinstance(model, ModelConfig) else model).to(world.device).train()
        model.checkpointing = config.checkpointing
        trainer = Trainer(model, config, batches, world)
        if run.latest:
            load_checkpoint(run.latest, model, trainer.optimizer)
        sitting = _Sitting(
            run, trainer, texts, tokenizer, world, Report(run, config.steps, quiet) if world.first else None
        )
        try:
            return sitting.train()
        finally:
            sitting.close()


class _Sitting:
    """One go at a run, from its newest checkpoint to the last step."""

    def __init__(
        self, run: Run, trainer: Trainer, texts: Splits, tokenizer: Tokenizer | None, world: World, report
    ) -> None:
        self.run, self.trainer, self.texts, self.tokenizer, self.world = run, trainer, texts, tokenizer, world
        self.report: Report | None = report
        self.config = trainer.config
        self.validation = Validation(texts.validation, self.config)
        self._pace: float | None = None
        self._start = time.monotonic() - (report.last.get("seconds", 0.0) if report else 0.0)

    def train(self) -> TrainResult:
        for step in range(self.run.step + 1, self.config.steps + 1):
            last = step == self.config.steps
            try:
                self._update(step)
                if last or step % self.config.evaluate_every == 0:
                    self._evaluate(step)
            except NonFiniteLossError as error:
                raise NonFiniteLossError(self._farewell(error)) from None
            if last or step % self.config.save_every == 0:
                self.world.once(lambda step=step: self._save(step))
        return self._result()

    def close(self) -> None:
        if self.report:
            self.report.close()

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


def _settings(model: LanguageModel | ModelConfig, config: TrainConfig, texts: Splits, tokenizer) -> Settings:
    model_config = model if isinstance(model, ModelConfig) else model.config
    data = {"train_tokens": len(texts.train), "validation_tokens": len(texts.validation)}
    return Settings(model_config.to_dict(), config, data | {"tokenizer": tokenizer.fingerprint if tokenizer else None})


def _check_vocabulary(model: LanguageModel | ModelConfig, texts: Splits) -> None:
    config = model if isinstance(model, ModelConfig) else model.config
    if texts.train.vocab_size > config.vocab_size:
        raise ValueError(
            f"train: the text is encoded with a vocabulary of {texts.train.vocab_size}, but the model's is "
            f"{config.vocab_size}. Build the model with vocab_size={texts.train.vocab_size}."
        )


def _devices(world: World) -> list[torch.device]:
    return [world.device] if world.device.type == "cuda" else []
