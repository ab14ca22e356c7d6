"""From the steps of a sequence to what it is judged by, in one go or piece by piece."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lavagna.modules.precision import wide, wide_dtype
from lavagna.modules.steps import Steps
from lavagna.state import State


def initial_pooled(pooling: str, batch: int, width: int, device: torch.device | str, dtype: torch.dtype) -> State:
    """What pooling remembers before the first step: a sum of 0, a maximum of -inf, or a last step of 0."""
    nothing = float("-inf") if pooling == "max" else 0.0
    pooled = torch.full((batch, width), nothing, device=device, dtype=wide_dtype(dtype))
    return State(pooling, {"pooled": pooled, "tokens_seen": torch.zeros(batch, dtype=torch.int64, device=device)})


def pool(pooling: str, x: Float[Tensor, "b t d"], steps: Steps, before: State | None) -> State:
    """What pooling remembers after these steps too, float32 at least; masked steps change nothing."""
    if before is None:
        before = initial_pooled(pooling, steps.sequences, x.shape[-1], x.device, x.dtype)
    _, pooled = steps.by_rows(_POOLED[pooling], wide(x), before.pooled)
    return State(pooling, {"pooled": pooled, "tokens_seen": before.tokens_seen + steps.counts})


def read(state: State) -> Float[Tensor, "n d"]:
    """What sequences are judged by: the mean, the maximum or the last of their real steps, 0 where there is none."""
    seen = state.tokens_seen[:, None]
    if state.kind == "mean":
        return state.pooled / seen.clamp_min(1)
    return torch.where(seen > 0, state.pooled, 0)


# Each takes steps (m, l, d), how many of the l are real, with zeros behind, and what is remembered (m, d); the first of
# the two results, steps to scatter, is nothing.
_Pooled = tuple[Shaped[Tensor, "m l 0"], Float[Tensor, "m d"]]


def _sum(x: Float[Tensor, "m l d"], counts: Int[Tensor, " m"], before: Float[Tensor, "m d"]) -> _Pooled:
    return x[..., :0], before + x.sum(1)


def _largest(x: Float[Tensor, "m l d"], counts: Int[Tensor, " m"], before: Float[Tensor, "m d"]) -> _Pooled:
    behind = torch.arange(x.shape[1], device=x.device) >= counts[:, None]
    return x[..., :0], torch.cat([before[:, None], x.masked_fill(behind[..., None], float("-inf"))], 1).amax(1)


def _last(x: Float[Tensor, "m l d"], counts: Int[Tensor, " m"], before: Float[Tensor, "m d"]) -> _Pooled:
    row = torch.arange(x.shape[0], device=x.device)
    return x[..., :0], torch.cat([before[:, None], x], 1)[row, counts]


_POOLED: dict[str, Callable[..., _Pooled]] = {"mean": _sum, "max": _largest, "last": _last}
