"""How well a small classifier reads the digits, pixel by pixel, after a short training."""

from collections.abc import Mapping
from typing import Any

import torch

from lavagna.data import ExampleSplits
from lavagna.models import ClassifierConfig, SequenceClassifier
from lavagna.training import NonFiniteLossError, TrainConfig
from lavagna.training.classification import Classification
from lavagna.training.distributed import World
from lavagna.training.trainer import Trainer

WIDTH = 32
DEPTH = 2
LR = 1e-2


def percent_right(
    layer: str,
    options: Mapping[str, Any],
    data: ExampleSplits,
    *,
    steps: int,
    batch: int,
    seed: int,
    width: int = WIDTH,
    device: str = "cpu",
) -> float:
    """Per cent of the held-out digits that are named right, judged by the last step; NaN where the loss became none.

    A classifier of two blocks without MLPs, float32, AdamW with a learning rate of 0.01 that falls along a cosine,
    without weight decay. `seed` draws parameters and batches.
    """
    model = ClassifierConfig(
        layer, width, DEPTH, classes=10, features=1, pooling="last", options=options, mlp_factor=0
    )  # fmt: skip
    config = TrainConfig(steps=steps, batch=batch, lr=LR, weight_decay=0.0, seed=seed)
    world, objective = World(torch.device(device)), Classification(data, config)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        trainer = Trainer(SequenceClassifier(model).to(device).train(), config, objective, world)
        try:
            for step in range(steps):
                trainer.update(step)
        except NonFiniteLossError:
            return float("nan")
    return 100 * objective.judge(trainer.model, world)["validation_accuracy"]
