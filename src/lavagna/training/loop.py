"""Training from the first update to the last, in as many sittings as it takes."""

from contextlib import ExitStack, closing
from pathlib import Path

import torch

from lavagna.data import Batches, Splits, Tokenizer
from lavagna.models import LanguageModel, ModelConfig
from lavagna.training.checkpoint import load_checkpoint
from lavagna.training.config import TrainConfig
from lavagna.training.distributed import World, join_world
from lavagna.training.lock import locked
from lavagna.training.run import Settings, open_run
from lavagna.training.sitting import Sitting, TrainResult
from lavagna.training.trainer import Trainer


def train(
    model: LanguageModel | ModelConfig,
    config: TrainConfig,
    texts: Splits,
    tokenizer: Tokenizer | None,
    folder: str | Path,
    *,
    resume: bool = False,
    device: torch.device | str | None = None,
    seconds: float | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train a language model and leave a run's folder: checkpoints, log, TensorBoard, loss curve.

    `model` is a config, whose parameters are then drawn from `config.seed`, or a model, trained as it stands and in
    place. With `resume` the run in the folder goes on from its newest checkpoint, to the same losses, bit for bit, as
    if it had never stopped; where there is none yet it starts. Under `torchrun` all processes train together, on the
    same global batches. `device` None is CUDA if there is one. `quiet` prints nothing. After `seconds` of updates the
    run ends with the update at hand, as after the last one; it can be resumed.

    Raises `ValueError` on sizes that do not fit, on a run or checkpoint of other settings or another version, and, as
    `NonFiniteLossError`, where the loss is no longer a number: the newest checkpoint is then the last good one. Raises
    `OSError` in one line where the disk is full; older checkpoints stay.
    """
    folder = Path(folder)
    with ExitStack() as stack:
        world = stack.enter_context(join_world(device))
        stack.enter_context(torch.random.fork_rng(_devices(world)))
        batches = Batches(texts.train, batch=config.batch, context=config.context, seed=config.seed)
        world.share(config.batch)
        _check_vocabulary(model, texts)
        settings = _settings(model, config, texts, tokenizer)
        world.once(lambda: stack.enter_context(locked(folder)))
        run = world.once(lambda: open_run(folder, settings, resume=resume))
        torch.manual_seed(config.seed)
        model = (LanguageModel(model) if isinstance(model, ModelConfig) else model).to(world.device).train()
        stack.callback(setattr, model, "checkpointing", model.checkpointing)
        model.checkpointing = config.checkpointing
        trainer = Trainer(model, config, batches, world)
        if run.latest:
            load_checkpoint(run.latest, model, trainer.optimizer)
        sitting = Sitting(run, trainer, texts, tokenizer, world, seconds=seconds, quiet=quiet)
        return stack.enter_context(closing(sitting)).train()


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
