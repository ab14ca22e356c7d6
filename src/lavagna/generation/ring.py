"""The cache of an attention as a captured step keeps it: with room, each entry where the number of its token says."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lavagna.generation.recording import Node, UncapturableError, tensors_in
from lavagna.kernels.cpu import attention
from lavagna.modules.attention import picked


class Ring(NamedTuple):
    """Room for `capacity` entries, that of token t at t modulo the capacity.

    `window - 1` tokens are kept, all where that is None; as large as the window, a ring is never full.
    """

    window: int | None
    capacity: int

    @property
    def fills(self) -> bool:
        """Whether the room ends."""
        return self.capacity != self.window

    def laid_out(
        self, entries: Float[Tensor, "b s h k"], tokens_seen: Int[Tensor, " b"]
    ) -> Float[Tensor, "b capacity h k"]:
        """The cache of a state, as the layer returns it, in a new ring."""
        first, kept = self._kept(tokens_seen)
        place = (torch.arange(self.capacity, device=first.device) - first) % self.capacity
        return picked(entries, place, place < kept)

    def in_order(
        self, ring: Float[Tensor, "b capacity h k"], tokens_seen: Int[Tensor, " b"]
    ) -> Float[Tensor, "b s h k"]:
        """The inverse, as long as the longest row; shares nothing with the ring."""
        first, kept = self._kept(tokens_seen)
        place = torch.arange(int(kept.max()), device=first.device)
        return picked(ring, (place + first) % self.capacity, place < kept)

    def _kept(self, tokens_seen: Tensor) -> tuple[Tensor, Tensor]:
        """The first token that each row keeps, and how many it does, (b, 1)."""
        kept = tokens_seen if self.window is None else tokens_seen.clamp(max=self.window - 1)
        return (tokens_seen - kept)[:, None], kept[:, None]


def rings(
    nodes: Sequence[Node], state: Mapping[str, Tensor], after: Mapping[str, Tensor], room: int
) -> dict[str, Ring]:
    """The rings of a state's tensors that are caches of attention, with room for so many tokens more.

    Raises UncapturableError where a cache is empty, or anything else than one step of its block has a part in it.
    """
    found, names = {}, {id(x): name for name, x in state.items()}
    reads = Counter(id(x) for node in nodes for x in tensors_in((node.args, node.kwargs)))
    for node in nodes:
        if node.function is not attention.STEP:
            continue
        *_, keys, values, tokens_seen, window = node.args
        capacity = int(tokens_seen.max()) + room
        ring = Ring(window, capacity if window is None else min(window, capacity))
        for x, new in zip((keys, values), node.results[1:], strict=True):
            name = names.get(id(x), "")
            own = state.get(f"{name.partition('.')[0]}.tokens_seen") is tokens_seen and after.get(name) is new
            # Memory of no size has no place by which to know it again.
            if not own or reads[id(x)] != 1 or reads[id(new)] or not x.numel() or not new.numel():
                raise UncapturableError("A cache is empty, or is read besides.")
            found[name] = ring
    return found
