"""What a training makes small, and how it is judged: what the trainer wants of every task."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lavagna.models import StackConfig
from lavagna.training.distributed import World


class Objective(ABC):
    """A task to learn: batches that are a function of the step, a loss, and a measure on what was held out.

    `kind` is that of the models that can learn it. `per_update` counts what one update learns from, in what `speed`
    names the number of a second. `about` describes the data in plain values; a run goes on only with the same.
    """

    kind: ClassVar[str]
    speed: ClassVar[str]
    per_update: int
    about: dict[str, Any]

    @abstractmethod
    def check(self, model: StackConfig) -> None:
        """Raise ValueError where a model of the right kind can't learn from this data."""

    @abstractmethod
    def rows(self, step: int, start: int, stop: int) -> Any:
        """Rows `start` to `stop` of the batch of a step; a function of these alone. They have a `.to(device)`."""

    @abstractmethod
    def loss(self, model: nn.Module, rows: Any) -> Tensor:
        """What the model is to make small: a mean over the rows, each with the same weight, in nats."""

    @abstractmethod
    def told(self, loss: float) -> dict[str, float]:
        """What else there is to say of an update with this loss."""

    @abstractmethod
    def judge(self, model: nn.Module, world: World) -> dict[str, float]:
        """Measures on what was held out, `validation_loss` among them, the same on all ranks; none if nothing was."""


@contextmanager
def judging(model: nn.Module) -> Iterator[None]:
    """The model in eval mode and without gradients for the while; then in the mode that it was in."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        yield
    model.train(was_training)


def portions(start: int, stop: int, size: int | None) -> Iterator[tuple[int, int]]:
    """Cut a range in pieces of `size`, the last one smaller if need be; one piece for None."""
    size = size or max(stop - start, 1)
    return ((low, min(low + size, stop)) for low in range(start, stop, size))
