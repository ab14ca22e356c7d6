"""The recurrent form: a left fold, one step after the other."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.decay import Survival, fade, survival
from lavagna.algebra.transition import Transition

# Steps whose decays are computed together: many enough to save calls, few enough to stay in the cache.
TOGETHER = 64


def recurrent(
    a: Transition,
    q: Shaped[Tensor, "b t h k"],
    k: Shaped[Tensor, "b t h k"],
    v: Shaped[Tensor, "b t h v"],
    state: Shaped[Tensor, "b h v k"],
    *,
    read: str,
    chunk: int,
) -> tuple[Shaped[Tensor, "b t h v"], Shaped[Tensor, "b h v k"]]:
    """`(...((S_0 A_1 + W_1) A_2 + W_2)...)`: the definition, and the way to generate.

    Cost O(t v k), forward and backward; without gradients the memory beside inputs and outputs is O(v k): nothing is
    kept of a step but its output. `chunk` is not used.
    """
    outputs = []
    for step in _steps(a, q, k, v):
        before, write = state, step.v.unsqueeze(-1) * step.k.unsqueeze(-2)
        if step.erase is not None and step.right is not None:
            write = write - (state @ step.erase.unsqueeze(-1)) * step.right.unsqueeze(-2)
        state = fade(state, step.decay, write)
        outputs.append(((before if read == "before" else state) @ step.q.unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, 1), state


class _Step(NamedTuple):
    """What one step does: every tensor (b, h, ·), the decay (b, h, 1, ·); absent parts are None."""

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Survival | None
    erase: Tensor | None
    right: Tensor | None


def _steps(a: Transition, q: Tensor, k: Tensor, v: Tensor) -> Iterator[_Step]:
    """Every step in order.

    Tensors are split and unbound, never indexed step by step: the gradient of an index is a tensor of the whole text,
    and the backward of a loop over them quadratic in t.
    """
    parts = {name: part.split(TOGETHER, 1) for name, part in a.parts.items()}
    for i, (q_i, k_i, v_i) in enumerate(zip(*(x.split(TOGETHER, 1) for x in (q, k, v)), strict=True)):
        log_decay, erase, right, decayed = Transition(**{name: part[i] for name, part in parts.items()}).factors()
        decay = survival(log_decay)
        if log_decay is not None and erase is not None and decayed:
            erase = erase * log_decay.exp()
        keep, rest = (None, None) if decay is None else (x.unsqueeze(-2) for x in decay)
        for one in zip(*(_each(x, q_i.shape[1]) for x in (q_i, k_i, v_i, keep, rest, erase, right)), strict=True):
            q_t, k_t, v_t, keep_t, rest_t, erase_t, right_t = one
            kept = None if keep_t is None or rest_t is None else Survival(keep_t, rest_t)
            yield _Step(q_t, k_t, v_t, kept, erase_t, right_t)


def _each(x: Tensor | None, steps: int) -> tuple[Tensor, ...] | tuple[None, ...]:
    return (None,) * steps if x is None else x.unbind(1)
