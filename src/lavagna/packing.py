"""Rows of steps: index maps between a padded or packed time axis and rows that hold real steps only.

A mask scatters real steps over a row; `cu_seqlens` lays several rows end to end in one. Either way the real steps of
row i, in order and without holes, are one row of a compact batch, and what works on a plain batch works there.
"""

from collections.abc import Iterable
from numbers import Integral
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


class Rows(NamedTuple):
    """Where row i finds its j-th real step in (b, t), flattened; `real` is False where row i has no j-th step."""

    index: Int[Tensor, "n length"]
    real: Bool[Tensor, "n length"]
    batch: int
    steps: int

    @property
    def counts(self) -> Int[Tensor, " n"]:
        """How many real steps each row has, int64 (n,)."""
        return self.real.sum(1)

    def gather(self, x: Shaped[Tensor, "b t *rest"]) -> Shaped[Tensor, "n length *rest"]:
        """The real steps of `x` row by row, zero behind each row's last."""
        flat = x.reshape(self.batch * self.steps, *x.shape[2:])
        picked = flat.index_select(0, self.index.flatten()).reshape(*self.index.shape, *x.shape[2:])
        return picked.masked_fill(~_like(self.real, picked), 0)

    def scatter(self, y: Shaped[Tensor, "n length *rest"]) -> Shaped[Tensor, "b t *rest"]:
        """The inverse of `gather`: every real step back in its place, zero elsewhere."""
        n, length = self.index.shape
        # Steps that are not real all go to one place more than there are, which is cut off.
        target = torch.where(self.real, self.index, self.batch * self.steps).flatten()
        flat = y.new_zeros(self.batch * self.steps + 1, *y.shape[2:])
        flat = flat.index_copy(0, target, y.reshape(n * length, *y.shape[2:]))
        return flat[:-1].reshape(self.batch, self.steps, *y.shape[2:])

    def alike(self) -> list[tuple[list[int], "Rows"]]:
        """Rows of like length together, each group within a factor of two and no longer than its longest.

        What is done group by group costs at most twice the real steps, also where one row is much longer than the rest.
        """
        counts = self.counts.tolist()
        groups: dict[int, list[int]] = {}
        for row, count in enumerate(counts):
            groups.setdefault(max(count - 1, 0).bit_length() if count else -1, []).append(row)
        return [(members, self.select(members, max(counts[row] for row in members))) for members in groups.values()]

    def select(self, rows: list[int], length: int) -> "Rows":
        """Some rows, cut to the first `length` steps."""
        return self._replace(index=self.index[rows, :length], real=self.real[rows, :length])


def _like(mask: Tensor, x: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *(1,) * (x.ndim - 2))


def masked_rows(mask: Bool[Tensor, "b t"]) -> Rows:
    """The real steps of each row of a mask (b, t)."""
    batch, steps = mask.shape
    order = torch.argsort(~mask, dim=1, stable=True)
    real = torch.arange(steps, device=mask.device) < mask.sum(1, keepdim=True)
    start = torch.arange(batch, device=mask.device)[:, None] * steps
    return Rows(order + start, real, batch, steps)


def packed_rows(
    cu_seqlens: list[int], mask: Bool[Tensor, "1 t"] | None = None, *, device: torch.device | str | None = None
) -> Rows:
    """The segments of one packed row, each a row of its own; with a mask (1, t) only their real steps."""
    steps = cu_seqlens[-1]
    starts = torch.tensor(cu_seqlens[:-1], dtype=torch.int64, device=device)
    lengths = torch.tensor(cu_seqlens[1:], dtype=torch.int64, device=device) - starts
    longest = max((j - i for i, j in zip(cu_seqlens, cu_seqlens[1:], strict=False)), default=0)
    place = torch.arange(longest, device=device)
    real = place < lengths[:, None]
    index = torch.where(real, starts[:, None] + place, 0)
    if mask is not None and steps:
        real = real & mask[0][index]
        order = torch.argsort(~real, dim=1, stable=True)
        index, real = index.gather(1, order), real.gather(1, order)
    return Rows(index, real, 1, steps)


def as_mask(call: str, mask: Shaped[Tensor, "..."], batch: int, steps: int) -> Bool[Tensor, "b t"]:
    """A user's mask as bool (b, t); raises ValueError unless it has that shape and holds only 0 and 1."""
    if not isinstance(mask, Tensor) or tuple(mask.shape) != (batch, steps):
        came = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"{call}: mask must be a tensor (b, t) = ({batch}, {steps}), but came as {came}.")
    if mask.dtype == torch.bool:
        return mask
    real = mask != 0
    if not torch.compiler.is_compiling() and not bool(((mask == 0) | (mask == 1)).all()):
        raise ValueError(f"{call}: mask must hold only 0 and 1 (or be bool), but holds other values. Use mask != 0.")
    return real


def as_offsets(call: str, cu_seqlens: Shaped[Tensor, "..."] | list[int], batch: int, steps: int) -> list[int]:
    """A user's offsets as a list; raises ValueError unless they run from 0 to t without decreasing, with batch 1."""
    if isinstance(cu_seqlens, Tensor):
        if cu_seqlens.ndim != 1 or cu_seqlens.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"{call}: cu_seqlens must be a list of int or an int32 or int64 tensor with one axis, but came as "
                f"{cu_seqlens.dtype} {tuple(cu_seqlens.shape)}."
            )
        offsets = [int(i) for i in cu_seqlens.tolist()]
    else:
        whole = isinstance(cu_seqlens, Iterable) and all(isinstance(i, Integral) for i in cu_seqlens)
        if not whole or any(isinstance(i, bool) for i in cu_seqlens):
            raise ValueError(f"{call}: cu_seqlens must hold integers, but came as {cu_seqlens!r}.")
        offsets = [int(i) for i in cu_seqlens]
    if batch != 1:
        raise ValueError(
            f"{call}: with cu_seqlens the batch b must be 1 (all sequences lie end to end in one row), but b is "
            f"{batch}. Reshape (b, t, ...) to (1, b * t, ...)."
        )
    ordered = all(i <= j for i, j in zip(offsets, offsets[1:], strict=False))
    if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != steps or not ordered:
        raise ValueError(
            f"{call}: cu_seqlens must start at 0, not decrease, and end at t = {steps}, but came as {offsets}."
        )
    return offsets
