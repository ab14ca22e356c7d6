"""How tensors of two naming schemes become each other, without changing a bit in either direction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Turn(NamedTuple):
    """A map of tensors and its inverse. Both only move numbers."""

    read: Callable[[list[Tensor]], list[Tensor]]
    write: Callable[[list[Tensor]], list[Tensor]]

    @property
    def inverse(self) -> "Turn":
        """The same map the other way round."""
        return Turn(self.write, self.read)


@dataclass(frozen=True)
class Rule:
    """Parameters of ours that are made of tensors of theirs: `ours = turns(theirs)`, and back by the inverses.

    Every tensor of theirs belongs to one rule, every parameter of ours too.
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    turns: tuple[Turn, ...] = ()

    def read(self, tensors: list[Tensor]) -> list[Tensor]:
        """Our parameters from their tensors."""
        for turn in self.turns:
            tensors = turn.read(tensors)
        return tensors

    def write(self, tensors: list[Tensor]) -> list[Tensor]:
        """Their tensors from our parameters."""
        for turn in reversed(self.turns):
            tensors = turn.write(tensors)
        return tensors

    def then(self, *turns: Turn) -> "Rule":
        """The rule with further turns behind its own."""
        return Rule(self.ours, self.theirs, self.turns + turns)


def same(ours: str, theirs: str, *turns: Turn) -> Rule:
    """One of ours is one of theirs, turned where `turns` are given."""
    return Rule((ours,), (theirs,), turns)


def stacked(ours: str, theirs: Sequence[str], sizes: Sequence[int], *, axis: int = 0) -> Rule:
    """One of ours is several of theirs behind one another, each so many rows as `sizes` says."""
    return Rule((ours,), tuple(theirs), (_stack(sizes, axis),))


def parted(ours: Sequence[str], theirs: str, sizes: Sequence[int], *, axis: int = 0) -> Rule:
    """Several of ours are one of theirs, cut into as many rows as `sizes` says."""
    return Rule(tuple(ours), (theirs,), (_stack(sizes, axis).inverse,))


def transposed(ours: str, theirs: str) -> Rule:
    """One of ours is one of theirs with its last two axes exchanged."""
    return same(ours, theirs, transpose())


def reshaped(ours: str, theirs: str, our_shape: Sequence[int], their_shape: Sequence[int]) -> Rule:
    """One of ours is one of theirs by another shape."""
    return same(ours, theirs, reshape(our_shape, their_shape))


def rows(ours: str, theirs: str, order: Sequence[int] | Tensor) -> Rule:
    """Row i of ours is row `order[i]` of theirs."""
    return same(ours, theirs, reorder(order))


def transpose() -> Turn:
    """The last two axes exchanged."""

    def turned(tensors: list[Tensor]) -> list[Tensor]:
        return [tensor.transpose(-1, -2).contiguous() for tensor in tensors]

    return Turn(turned, turned)


def reshape(ours: Sequence[int], theirs: Sequence[int]) -> Turn:
    """The same numbers in the same order by another shape."""
    return Turn(
        lambda tensors: [x.reshape(ours) for x in tensors], lambda tensors: [x.reshape(theirs) for x in tensors]
    )


def squeeze(axis: int) -> Turn:
    """Theirs has an axis of one that ours lacks."""
    return Turn(
        lambda tensors: [x.squeeze(axis) for x in tensors],
        lambda tensors: [x.unsqueeze(axis) for x in tensors],
    )


def reorder(order: Sequence[int] | Tensor, *, axis: int = 0) -> Turn:
    """Position i along an axis of ours is position `order[i]` of theirs."""
    order = torch.as_tensor(order, device="cpu")
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device="cpu")
    return Turn(
        lambda tensors: [_taken(x, order, axis) for x in tensors], lambda ts: [_taken(x, inverse, axis) for x in ts]
    )


def _taken(x: Tensor, order: Tensor, axis: int) -> Tensor:
    # Only the shape of what has no numbers is asked for, and torch would import its compiler to index it.
    return x if x.is_meta else x.index_select(axis, order.to(x.device))


def _stack(sizes: Sequence[int], axis: int) -> Turn:
    sizes = list(sizes)
    return Turn(lambda tensors: [torch.cat(tensors, axis)], lambda tensors: list(tensors[0].split(sizes, axis)))
