"""One training by several processes, as `torchrun` starts them; or by this process alone."""

import atexit
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class World:
    """The processes that train together, seen from one of them."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def share(self, batch: int) -> tuple[int, int]:
        """First row and end of this process's part of a global batch; the parts lie in the order of the ranks.

        Raises `ValueError` where the batch does not divide by the number of processes.
        """
        if batch % self.size:
            raise ValueError(
                f"train: batch {batch} does not divide by {self.size} processes. "
                f"Choose a multiple of {self.size}, such as {-(-batch // self.size) * self.size}."
            )
        rows = batch // self.size
        return self.rank * rows, (self.rank + 1) * rows

    def mean(self, value: Tensor) -> Tensor:
        """The mean over the processes, the same on all of them."""
        if self.size > 1:
            dist.all_reduce(value)
            value /= self.size
        return value

    def once(self, action: Callable[[], Any]) -> Any:
        """Do something in the first process; all return its result, or raise its error."""
        if self.size == 1:
            return action()
        told: list[Any] = [None, None]
        if self.first:
            try:
                told[0] = action()
            # Whatever it was, the others must hear of it: they wait.
            except Exception as error:
                told[1] = error
        dist.broadcast_object_list(told, src=0, device=self.device)
        if told[1] is not None:
            raise told[1]
        return told[0]

    def join(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over the processes at each backward pass; itself where it is alone."""
        if self.size == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, devices, gradient_as_bucket_view=True)


@contextmanager
def join_world(device: torch.device | str | None = None) -> Iterator[World]:
    """The world of this process: what `torchrun` says in the environment, or this process alone.

    `device` None is CUDA where there is one, each process with its own, else the CPU. Processes speak NCCL on CUDA and
    gloo on the CPU. They stay joined until they end, so that one training can follow another. After an error they part
    without a word: the others may not answer any more, and `torchrun` ends them.

    Raises `ValueError` where the environment holds what `torchrun` can't have put there.
    """
    size = _number("WORLD_SIZE", 1, least=1)
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if size == 1:
        yield World(device)
        return
    rank = _number("RANK", 0, below=size)
    if device.type == "cuda":
        device = torch.device("cuda", _number("LOCAL_RANK", rank, below=torch.cuda.device_count()))
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl", device_id=device) if device.type == "cuda" else dist.init_process_group("gloo")
    atexit.unregister(_part)
    yield World(device, rank, size)
    atexit.register(_part)


def _number(name: str, default: int, *, least: int = 0, below: int | None = None) -> int:
    """A number from the environment that `torchrun` sets."""
    text = os.environ.get(name, str(default))
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if number < least or (below is not None and number >= below):
        wanted = f"a number from {least}" + ("" if below is None else f" to {below - 1}")
        raise ValueError(
            f"train: {name} must be {wanted} in the environment, but is {text!r}. Leave it to torchrun, or unset it."
        )
    return number


def _part() -> None:
    """Leave the others."""
    # A model that still averages its gradients keeps the threads of the group alive, and a process that ends with them
    # crashes.
    gc.collect()
    dist.destroy_process_group()
