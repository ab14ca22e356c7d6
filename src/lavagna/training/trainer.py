"""One update after another: gradients, clipping, AdamW."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lavagna.models import Stack
from lavagna.training.config import TrainConfig
from lavagna.training.distributed import World
from lavagna.training.groups import parameter_groups
from lavagna.training.objective import Objective, portions


class Update(NamedTuple):
    """What an update saw: the loss before it in nats, the norm of the gradient before clipping, its rate."""

    loss: float
    grad_norm: float
    lr: float


class NonFiniteLossError(ValueError):
    """The loss or its gradient became infinite or NaN. The parameters are those before the update."""


class Trainer:
    """A model with its optimizer, one process's part of the training.

    Everything random in update `step` depends on the seed, the step and the rank, so that nothing but parameters and
    moments carries from one update to the next.
    """

    def __init__(self, model: Stack, config: TrainConfig, objective: Objective, world: World) -> None:
        self.model = model
        self.config = config
        self.objective = objective
        self._world = world
        groups = parameter_groups(model, config.weight_decay)
        kind = world.device.type
        # One kernel for all parameters; where torch has none, its ordinary implementation gives the same updates.
        self.optimizer = torch.optim.AdamW(
            groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=kind in ("cpu", "cuda") or None
        )
        self.optimizer.zero_grad()
        self._parameters = [parameter for group in groups for parameter in group["params"]]
        self._parallel = world.join(torch.compile(model) if config.compile else model)  # pyright: ignore

    def update(self, step: int) -> Update:
        """Learn from the batch of update number `step`, counted from 0.

        Raises `NonFiniteLossError`, on all processes alike, before anything is changed, and `ValueError` where the
        model was to be compiled and can't be.
        """
        torch.manual_seed(_mixed_seed(self.config.seed, step, self._world.rank))
        with _compiling(self.config.compile):
            own_loss = self._gradients(step)
        loss = self._world.mean(own_loss).item()
        _check_finite("loss", loss, step)
        norm = nn.utils.clip_grad_norm_(self._parameters, self.config.clip).item()
        _check_finite("gradient's norm", norm, step)
        lr = self.config.rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad()
        return Update(loss, norm, lr)

    @torch.no_grad()
    def check(self, step: int) -> None:
        """Raise `NonFiniteLossError` if update number `step` would meet a loss that is no number. Changes nothing."""
        total = torch.zeros((), device=self._world.device)
        self.model.eval()
        for low, high in portions(*self._world.share(self.config.batch), self.config.micro_batch):
            rows = self.objective.rows(step, low, high).to(self._world.device)
            total += self.objective.loss(self.model, rows)
        self.model.train()
        _check_finite("loss", self._world.mean(total).item(), step)

    def _gradients(self, step: int) -> Tensor:
        start, stop = self._world.share(self.config.batch)
        total = torch.zeros((), device=self._world.device)
        for low, high in portions(start, stop, self.config.micro_batch):
            rows = self.objective.rows(step, low, high).to(self._world.device)
            with self._exchange(last=high == stop):
                loss = self.objective.loss(self._parallel, rows) * ((high - low) / (stop - start))
                loss.backward()
            total += loss.detach()
        return total

    def _exchange(self, *, last: bool) -> AbstractContextManager:
        # Gradients travel between the processes once an update, with the last portion.
        parallel = self._parallel
        return parallel.no_sync() if isinstance(parallel, DistributedDataParallel) and not last else nullcontext()


def _check_finite(name: str, value: float, step: int) -> None:
    if not abs(value) < float("inf"):
        raise NonFiniteLossError(f"the {name} is {value} at step {step + 1}")


@contextmanager
def _compiling(asked: bool) -> Iterator[None]:
    if not asked:
        yield
        return
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except TorchDynamoException as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"train: torch.compile failed ({reason}). Mend that, or train without compile.") from error


def _mixed_seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
