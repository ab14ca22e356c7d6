"""Sequences with labels in memory, and batches of them that are a function of the step."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from lavagna.data.permutation import permuted


class LabeledBatch(NamedTuple):
    """Sequences, zeros behind the shorter ones, and their labels; `mask` is None where all are of one length."""

    x: Float[Tensor, "b t f"]
    mask: Bool[Tensor, "b t"] | None
    labels: Int64[Tensor, " b"]

    def to(self, device: torch.device | str) -> "LabeledBatch":
        """The same batch on a device."""
        mask = None if self.mask is None else self.mask.to(device)
        return LabeledBatch(self.x.to(device), mask, self.labels.to(device))


class Examples:
    """Labeled sequences end to end: sequence i is `values[offsets[i] : offsets[i + 1]]`, (t, f), of class `labels[i]`.

    Values keep the dtype they came in and become float32 in a batch: floats as they are, integers over the range of
    their dtype, signed from -1 to below 1 and unsigned from -1 to 1.

    >>> two = Examples(np.array([[-128], [0], [64]], np.int8), np.array([0, 2, 3]), np.array([1, 0]))
    >>> two.take(np.array([0, 1])).x[..., 0].tolist()
    [[-1.0, 0.0], [0.5, 0.0]]
    """

    def __init__(self, values: np.ndarray, offsets: np.ndarray, labels: np.ndarray) -> None:
        self.values, self.offsets, self.labels = values, offsets, labels

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def features(self) -> int:
        """Numbers of one step."""
        return self.values.shape[1]

    @property
    def lengths(self) -> np.ndarray:
        """Steps of each sequence."""
        return np.diff(self.offsets)

    def select(self, rows: np.ndarray) -> "Examples":
        """Some of the sequences, in the order of `rows`."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        steps = np.repeat(self.offsets[:-1][rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return Examples(self.values[steps], offsets, self.labels[rows])

    def take(self, rows: np.ndarray) -> LabeledBatch:
        """Some of the sequences as a batch."""
        lengths = self.lengths[rows]
        x = np.zeros((len(rows), int(lengths.max(initial=0)), self.features), np.float32)
        for row, index in enumerate(rows.tolist()):
            x[row, : lengths[row]] = scaled(self.values[self.offsets[index] : self.offsets[index + 1]])
        real = np.arange(x.shape[1]) < lengths[:, None]
        mask = None if real.all() else torch.from_numpy(real)
        return LabeledBatch(torch.from_numpy(x), mask, torch.from_numpy(self.labels[rows].astype(np.int64)))


def scaled(values: np.ndarray) -> np.ndarray:
    """Numbers as float32: floats as they are, integers over the range of their dtype."""
    if values.dtype.kind == "i":
        return values.astype(np.float32) / np.float32(2 ** (8 * values.itemsize - 1))
    if values.dtype.kind == "u":
        return values.astype(np.float32) * np.float32(2 / np.iinfo(values.dtype).max) - 1
    return values.astype(np.float32)


class ExampleBatches:
    """Batches of sequences, in an order that `seed` decides and the step number picks from.

    An epoch visits each sequence once, in a pseudo-random order of its own; batches run on over its end. `at(step)`
    depends on nothing but the arguments here and `step`: there is no position to save.

    Raises `ValueError` where there are no examples.
    """

    def __init__(self, examples: Examples, *, batch: int, seed: int) -> None:
        if batch < 1 or seed < 0 or not len(examples):
            raise ValueError(
                f"ExampleBatches: {len(examples)} examples, batch {batch}, seed {seed}. Give 1 or more; seed from 0."
            )
        self.examples, self.batch, self.seed = examples, batch, seed

    def at(self, step: int) -> LabeledBatch:
        """The batch of a step."""
        return self.rows(step, 0, self.batch)

    def rows(self, step: int, start: int, stop: int) -> LabeledBatch:
        """Rows `start` to `stop` of that batch, without touching the others: a rank's part of it."""
        if step < 0 or not 0 <= start <= stop <= self.batch:
            raise ValueError(
                f"ExampleBatches: got step {step} and rows {start} to {stop}. Give a step from 0 and rows within "
                f"{self.batch}."
            )
        drawn = step * self.batch + np.arange(start, stop, dtype=np.int64)
        epochs, places = np.divmod(drawn, len(self.examples))
        rows = np.empty_like(drawn)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            rows[here] = permuted(places[here], len(self.examples), key=(self.seed, int(epoch)))
        return self.examples.take(rows)
