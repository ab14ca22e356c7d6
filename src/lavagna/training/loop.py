"""Training from the first update to the last, in as many sittings as it takes."""

from contextlib import ExitStack, closing
from pathlib import Path

import torch

from lavagna.data import AbstractTokenizer, ExampleSplits, Splits
from lavagna.models import Stack, StackConfig
from lavagna.models.kinds import build, outline
from lavagna.training.checkpoint import load_checkpoint
from lavagna.training.classification import Classification
from lavagna.training.config import TrainConfig
from lavagna.training.distributed import World, join_world
from lavagna.training.lock import locked
from lavagna.training.next_token import NextToken
from lavagna.training.objective import Objective
from lavagna.training.run import Settings, open_run
from lavagna.training.sitting import Sitting, TrainResult
from lavagna.training.trainer import Trainer


def train(
    model: Stack | StackConfig,
    config: TrainConfig,
    data: Splits | ExampleSplits,
    tokenizer: AbstractTokenizer | None,
    folder: str | Path,
    *,
    resume: bool = False,
    device: torch.device | str | None = None,
    seconds: float | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Train a language model on texts, or a classifier on examples, and leave a run's folder.

    The folder has checkpoints, log, TensorBoard and loss curve. A classifier has no tokenizer: None.

    `model` is a config, whose parameters are then drawn from `config.seed`, or a model, trained as it stands and in
    place. With `resume` the run in the folder goes on from its newest checkpoint, to the same losses, bit for bit, as
    if it had never stopped; where there is none yet it starts. Under `torchrun` all processes train together, on the
    same global batches. `device` None is CUDA if there is one. `quiet` prints nothing. After `seconds` of updates the
    run ends with the update at hand, as after the last one; it can be resumed.

    Raises `ValueError` on sizes that do not fit, on a model of another kind than the data is for, on a run or a
    checkpoint of other settings or another version, and, as `NonFiniteLossError`, where the loss is no longer a number:
    the newest checkpoint is then the last good one. Raises `OSError` in one line where the disk is full; older
    checkpoints stay.
    """
    folder = Path(folder)
    with ExitStack() as stack:
        world = stack.enter_context(join_world(device))
        stack.enter_context(torch.random.fork_rng(_devices(world)))
        objective = _objective(data, config, tokenizer)
        world.share(config.batch)
        settings = _settings(model, config, objective)
        world.once(lambda: stack.enter_context(locked(folder)))
        run = world.once(lambda: open_run(folder, settings, resume=resume))
        torch.manual_seed(config.seed)
        built: Stack = build(model) if isinstance(model, StackConfig) else model
        built.to(world.device).train()
        stack.callback(setattr, built, "checkpointing", built.checkpointing)
        built.checkpointing = config.checkpointing
        trainer = Trainer(built, config, objective, world)
        if run.latest:
            load_checkpoint(run.latest, built, trainer.optimizer)
        sitting = Sitting(run, trainer, tokenizer, world, seconds=seconds, quiet=quiet)
        return stack.enter_context(closing(sitting)).train()


def _objective(data: Splits | ExampleSplits, config: TrainConfig, tokenizer: AbstractTokenizer | None) -> Objective:
    if isinstance(data, ExampleSplits):
        return Classification(data, config)
    return NextToken(data, config, tokenizer.fingerprint if tokenizer else None)


def _settings(model: Stack | StackConfig, config: TrainConfig, objective: Objective) -> Settings:
    model_config = model if isinstance(model, StackConfig) else model.config
    if model_config.kind != objective.kind:
        raise ValueError(
            f"train: the data is for a {objective.kind.replace('_', ' ')}, but the model is a "
            f"{model_config.kind.replace('_', ' ')}. Text trains language models, labeled examples train classifiers."
        )
    objective.check(model_config)
    # Before a folder is begun for it.
    outline(model_config)
    return Settings(model_config.to_dict(), config, objective.about, model_config.kind)


def _devices(world: World) -> list[torch.device]:
    return [world.device] if world.device.type == "cuda" else []
