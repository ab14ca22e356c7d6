"""Batches that are a function of the step, so that any run can be resumed, and any rank can take its part."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from lavagna.data.permutation import permuted


@runtime_checkable
class Tokens(Protocol):
    """A flat run of ids: a `TokenFile` or an array."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> Any: ...


class Batches:
    """Windows of `context + 1` ids, in an order that `seed` decides and the step number picks from.

    An epoch visits each of the `windows = (n - 1) // context` windows once, in a pseudo-random order of its own; two
    neighbors share one id, so every id but the first is a target once. What the windows leave over, fewer than
    `context` ids, lies before and after them: each epoch shifts the windows by another part of it. Batches run on
    over the end of an epoch.

    `at(step)` depends on nothing but the arguments here and `step`: there is no position to save, and skipping costs
    nothing. Cost: O(batch * context), memory too; the ids stay on disk.

    Raises `ValueError` where `tokens` are too few for one window.

    >>> batches = Batches(np.arange(100), batch=4, context=8, seed=0)
    >>> bool((batches.at(7) == torch.cat([batches.rows(7, 0, 3), batches.rows(7, 3, 4)])).all())
    True
    """

    def __init__(self, tokens: Tokens, *, batch: int, context: int, seed: int):
        if batch < 1 or context < 1 or seed < 0:
            raise ValueError(
                f"Batches: got batch {batch}, context {context}, seed {seed}. Give 1 or more; seed from 0."
            )
        if len(tokens) < context + 1:
            raise ValueError(
                f"Batches: the text has {len(tokens)} tokens, but context {context} needs {context + 1}. "
                f"Give more text, or a context of at most {max(len(tokens) - 1, 0)}."
            )
        self.tokens = tokens
        self.batch = batch
        self.context = context
        self.seed = seed
        self.windows = (len(tokens) - 1) // context
        self._spare = len(tokens) - 1 - self.windows * context

    def at(self, step: int) -> Int64[Tensor, "b t"]:
        """The batch of a step, `(batch, context + 1)`: inputs are `[:, :-1]`, targets `[:, 1:]`."""
        return self.rows(step, 0, self.batch)

    def rows(self, step: int, start: int, stop: int) -> Int64[Tensor, "b t"]:
        """Rows `start` to `stop` of that batch, without touching the others: a rank's part of it."""
        if step < 0 or not 0 <= start <= stop <= self.batch:
            raise ValueError(
                f"Batches: got step {step} and rows {start} to {stop}. Give a step from 0 and rows within {self.batch}."
            )
        return _gathered(self.tokens, self._starts(step, start, stop), self.context + 1)

    def epoch(self, step: int) -> float:
        """How many times the text has been gone through before this step."""
        return step * self.batch / self.windows

    def _starts(self, step: int, start: int, stop: int) -> np.ndarray:
        drawn = step * self.batch + np.arange(start, stop, dtype=np.int64)
        epochs, places = np.divmod(drawn, self.windows)
        starts = np.empty_like(drawn)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            key = (self.seed, int(epoch))
            shift = int(np.random.default_rng(key).integers(self._spare + 1))
            starts[here] = permuted(places[here], self.windows, key=key) * self.context + shift
        return starts


def sequential(tokens: Tokens, *, batch: int, context: int) -> Iterator[Int64[Tensor, "b t"]]:
    """All of `tokens` once, in order, in batches of up to `batch` windows; every id but the first is a target once.

    Windows are `context + 1` ids and neighbors share one; the last, shorter one is a batch of its own.

    Raises `ValueError` where there is nothing to predict.
    """
    if batch < 1 or context < 1 or len(tokens) < 2:
        raise ValueError(
            f"sequential: got {len(tokens)} tokens, batch {batch}, context {context}. "
            "Give 2 tokens or more (a longer text, or a larger validation part) and sizes from 1."
        )
    return _sequential(tokens, batch, context)


def _sequential(tokens: Tokens, batch: int, context: int) -> Iterator[Tensor]:
    whole = (len(tokens) - 1) // context * context
    for first in range(0, whole, batch * context):
        yield _gathered(tokens, np.arange(first, min(first + batch * context, whole), context), context + 1)
    if whole < len(tokens) - 1:
        yield _gathered(tokens, np.array([whole]), len(tokens) - whole)


def _gathered(tokens: Tokens, starts: np.ndarray, length: int) -> Tensor:
    rows = np.empty((len(starts), length), dtype=np.int64)
    for row, start in zip(rows, starts.tolist(), strict=True):
        row[:] = tokens[start : start + length]
    return torch.from_numpy(rows)
