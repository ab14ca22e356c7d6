"""From logits to the next id."""

import sys

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Sampler:
    """Draws an id from each row of logits.

    - temperature: logits are divided by it; 0 takes the largest, the lowest id where several are.
    - top_k: only the k largest stay. top_p: only the fewest ids stay whose probabilities sum to p. Both: top_k first.
    - seed: of a generator of its own; None draws from torch's global one.
    - size: ids are below it, however many columns the logits have.

    A row of a batch draws one number a step, whatever the other rows do. Raises ValueError on options out of range.
    """

    def __init__(
        self,
        call: str,
        *,
        size: int,
        temperature: float = 1.0,
        top_p: float | None = None,
        top_k: int | None = None,
        seed: int | None = None,
    ) -> None:
        if not 0 <= temperature <= sys.float_info.max:
            raise ValueError(f"{call}: temperature must be 0 (the likeliest id) or more, but came as {temperature}.")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"{call}: top_p must be above 0 and at most 1, or None, but came as {top_p}.")
        if top_k is not None and not (isinstance(top_k, int) and top_k >= 1):
            raise ValueError(f"{call}: top_k must be an int >= 1, or None, but came as {top_k!r}.")
        self._call, self._size = call, size
        self._temperature, self._top_p, self._top_k = temperature, top_p, top_k
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __call__(self, logits: Float[Tensor, "b rows"]) -> Int[Tensor, " b"]:
        """The next id of every row. Raises ValueError on logits that are NaN or infinite."""
        logits = logits[:, : self._size].double()
        best = logits.amax(1, keepdim=True)
        if not bool(best.isfinite().all()):
            raise ValueError(
                f"{self._call}: the model's logits hold NaN or infinity, so no id comes next. Did training diverge?"
            )
        if self._temperature == 0:
            return _first(logits == best)
        # Taken from the largest first, so that a tiny temperature makes 0 and -inf, never inf - inf.
        return self._drawn(((logits - best) / self._temperature).softmax(1))

    def _drawn(self, probabilities: Float[Tensor, "b n"]) -> Int[Tensor, " b"]:
        kept, order = probabilities, None
        if self._top_k is not None or self._top_p is not None:
            kept, order = torch.sort(probabilities, dim=1, descending=True, stable=True)
            kept = self._cut(kept)
        heights = kept.cumsum(1)
        # Drawn on the CPU, so that a seed gives the same text on every device.
        draw = torch.rand(len(kept), 1, generator=self._generator, dtype=torch.float64).to(kept.device)
        place = _first(heights > draw * (1 - 1e-12) * heights[:, -1:])
        return place if order is None else order.gather(1, place[:, None])[:, 0]

    def _cut(self, kept: Float[Tensor, "b n"]) -> Float[Tensor, "b m"]:
        """Probabilities in falling order, zero from where top_k and top_p end."""
        if self._top_k is not None:
            kept = kept[:, : self._top_k]
        if self._top_p is not None:
            share = kept / kept.sum(1, keepdim=True)
            kept = kept.masked_fill(share.cumsum(1) - share >= self._top_p, 0)
        return kept


def _first(hits: Tensor) -> Int[Tensor, " b"]:
    """The lowest column of each row where `hits` is true; every row has one."""
    columns = torch.arange(hits.shape[1], device=hits.device)
    return torch.where(hits, columns, hits.shape[1]).amin(1)
