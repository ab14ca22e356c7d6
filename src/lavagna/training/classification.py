"""Learning to name the class of a sequence: the loss of a classifier, and how it is judged."""

from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from lavagna.data import ExampleBatches, Examples, ExampleSplits, LabeledBatch
from lavagna.models import ClassifierConfig, StackConfig
from lavagna.training.config import TrainConfig
from lavagna.training.distributed import World
from lavagna.training.objective import Objective, judging, portions

# Nothing is kept for a backward pass, so more rows fit than an update has.
JUDGED_AT_ONCE = 32


def class_logits(model: nn.Module, batch: LabeledBatch, dtype: str = "float32") -> Float[Tensor, "b classes"]:
    """The logits of each sequence, float32 at least; `dtype` "bfloat16" runs the model under autocast."""
    with torch.autocast(batch.x.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        logits: Shaped[Tensor, "b classes"] = model(batch.x, mask=batch.mask).logits
    return logits.float()


def label_loss(model: nn.Module, batch: LabeledBatch, dtype: str = "float32") -> Float[Tensor, ""]:
    """The mean of `-log p(label | sequence)` in nats."""
    return F.cross_entropy(class_logits(model, batch, dtype), batch.labels)


class Classification(Objective):
    """The mean negative log-likelihood of each sequence's label, judged by all that was held out."""

    kind: ClassVar[str] = ClassifierConfig.kind
    speed: ClassVar[str] = "sequences_per_second"

    def __init__(self, splits: ExampleSplits, config: TrainConfig) -> None:
        self._splits, self._config = splits, config
        self._batches = ExampleBatches(splits.train, batch=config.batch, seed=config.seed)
        self.per_update = config.batch
        header = splits.header
        self.about = {
            "source": header.source,
            "train_examples": header.train,
            "validation_examples": header.validation,
            "fingerprint": header.fingerprint,
        }

    def check(self, model: StackConfig) -> None:
        """Raise ValueError where the model takes other numbers or knows fewer classes."""
        assert isinstance(model, ClassifierConfig)
        header = self._splits.header
        if model.features != header.features or model.classes < header.classes:
            raise ValueError(
                f"train: the sequences have {header.features} features and {header.classes} classes, but the model "
                f"{model.features} and {model.classes}. "
                f"Build it with features={header.features}, classes={header.classes}."
            )

    def rows(self, step: int, start: int, stop: int) -> LabeledBatch:
        """Sequences and their labels."""
        return self._batches.rows(step, start, stop)

    def loss(self, model: nn.Module, rows: Any) -> Tensor:
        """Nats a sequence."""
        return label_loss(model, rows, self._config.dtype)

    def told(self, loss: float) -> dict[str, float]:
        """Nothing else."""
        return {}

    def judge(self, model: nn.Module, world: World) -> dict[str, float]:
        """The loss and the share of right answers over all that was held out."""
        held_out = self._splits.validation
        size = self._config.micro_batch or max(self._config.batch, JUDGED_AT_ONCE)
        loss, accuracy = measure(model, held_out, size=size, dtype=self._config.dtype, world=world)
        return {"validation_loss": loss, "validation_accuracy": accuracy}


def measure(
    model: nn.Module, examples: Examples, *, size: int, world: World, dtype: str = "float32"
) -> tuple[float, float]:
    """The mean loss in nats and the share of right answers over all examples, `size` of them at a time.

    Each process takes its part; the numbers are the same on all.
    """
    count = len(examples)
    start, stop = (rank * count // world.size for rank in (world.rank, world.rank + 1))
    sums = torch.zeros(2, dtype=torch.float64, device=world.device)
    with judging(model):
        for low, high in portions(start, stop, size):
            batch = examples.take(np.arange(low, high)).to(world.device)
            logits = class_logits(model, batch, dtype)
            sums[0] += F.cross_entropy(logits, batch.labels, reduction="sum")
            sums[1] += (logits.argmax(1) == batch.labels).sum()
    loss, accuracy = (world.mean(sums) * world.size / count).tolist()
    return loss, accuracy
