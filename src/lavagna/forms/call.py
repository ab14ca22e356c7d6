"""Any legal call brought to what a form takes: full tensors of one dtype, one key head a value head, whole rows."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Shaped
from torch import Tensor

from lavagna.algebra.transition import Transition, shared
from lavagna.packing import Rows, packed_rows


class Inputs(NamedTuple):
    """A call brought to one shape: full tensors (b, t, h, ·) of one dtype, masked steps all zero."""

    a: Transition
    q: Shaped[Tensor, "b t h k"]
    k: Shaped[Tensor, "b t h k"]
    v: Shaped[Tensor, "b t h v"]


# What folds a call that is full: inputs and the state before them to every read and the state after them.
Fold = Callable[[Inputs, Tensor], tuple[Tensor, Tensor]]


def call(
    fold: Fold,
    a: Transition,
    q: Shaped[Tensor, "b t hk k"],
    k: Shaped[Tensor, "b t hk k"],
    v: Shaped[Tensor, "b t h v"],
    state: Shaped[Tensor, "n h v k"],
    *,
    real: Bool[Tensor, "b t"] | None = None,
    offsets: list[int] | None = None,
) -> tuple[Shaped[Tensor, "b t h v"], Shaped[Tensor, "n h v k"]]:
    """Reads and last state, in the dtype of `state`, of a call with broadcast axes, fewer key heads, a mask, borders.

    `real` says which steps are, `offsets` where sequences laid end to end in one row begin and end. Reads of steps that
    are not real are 0.
    """
    inputs = _full(a, q, k, v, state.dtype, real)
    if offsets is None:
        output, last = fold(inputs, state)
    else:
        output, last = _packed(fold, inputs, state, packed_rows(offsets, real, device=q.device))
    return output if real is None else output.masked_fill(~real[:, :, None, None], 0), last


def _full(a: Transition, q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype, real: Tensor | None) -> Inputs:
    """Every tensor in one dtype, broadcast axes spread out, one key head a value head, masked steps zero."""
    batch, steps, heads = v.shape[:3]
    hidden = None if real is None else ~real[:, :, None, None]

    @shared
    def full(x: Tensor) -> Tensor:
        x = x.to(dtype)
        if x.shape[2] not in (1, heads):
            x = x.repeat_interleave(heads // x.shape[2], 2)
        x = x.expand(batch, steps, heads, x.shape[3])
        return x if hidden is None else x.masked_fill(hidden, 0)

    return Inputs(a.map(full), full(q), full(k), full(v))


def _packed(fold: Fold, inputs: Inputs, start: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    """Run every segment as a row of its own, rows of like length together so that little is spent on filling up."""
    output = torch.zeros_like(inputs.v)
    order, lasts = [], []
    for members, some in rows.alike():
        gather = shared(some.gather)
        own = Inputs(inputs.a.map(gather), *(gather(x) for x in inputs[1:]))
        read, last = fold(own, start[members])
        output = output + some.scatter(read)
        order += members
        lasts.append(last)
    if not lasts:
        return output, start.clone()
    back = torch.tensor(order, device=start.device).argsort()
    return output, torch.cat(lasts).index_select(0, back)
