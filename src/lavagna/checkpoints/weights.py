"""The tensors of a checkpoint: known by their headers, read one at a time."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor


class Entry(NamedTuple):
    """What a header says of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class Weights(ABC):
    """Named tensors on the disk. Nothing but headers is read until one is taken, and nothing of it is kept.

    So whoever takes them one by one never holds more than the one, beside what was made of the others.
    """

    path: Path
    entries: dict[str, Entry]

    @abstractmethod
    def take(self, name: str) -> Tensor:
        """Read one tensor, whose memory is then the caller's alone."""

    @property
    def files(self) -> list[Path]:
        """The files that they are read from."""
        return [self.path]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each."""
        return {name: entry.shape for name, entry in self.entries.items()}

    @property
    def nbytes(self) -> int:
        """The size of the files."""
        return sum(file.stat().st_size for file in self.files)


class Shards(Weights):
    """Several files as one."""

    def __init__(self, path: Path, parts: list[Weights]) -> None:
        self.path, self.parts = path, parts
        self.entries = {}
        self._holder: dict[str, Weights] = {}
        for part in parts:
            for name, entry in part.entries.items():
                if name in self.entries:
                    raise ValueError(
                        f"load: {name} is in '{self._holder[name].path}' and in '{part.path.name}'. "
                        "A tensor belongs into one shard: copy the shards of one checkpoint again."
                    )
                self.entries[name], self._holder[name] = entry, part

    def take(self, name: str) -> Tensor:
        return self._holder[name].take(name)

    @property
    def files(self) -> list[Path]:
        return [self.path, *(part.path for part in self.parts)]
