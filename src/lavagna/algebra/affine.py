"""Single steps as affine maps of the state, `S -> S A + W`, and their composition."""

from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.transition import Factors


class Affine(NamedTuple):
    """Affine maps `S -> S A + W`, one a step: axes (b, h, t, ·, ·).

    At most one of `log_decay` (..., 1, 1 or k), for a diagonal A, and `matrix` (..., k, k); without both A = I.
    """

    log_decay: Tensor | None
    matrix: Tensor | None
    write: Tensor

    def at(self, start: int, stop: int, stride: int = 1) -> "Affine":
        """The maps of some steps."""
        steps = slice(start, stop, stride)
        log_decay, matrix = (None if x is None else x[:, :, steps] for x in (self.log_decay, self.matrix))
        return Affine(log_decay, matrix, self.write[:, :, steps])


def apply(maps: Affine, state: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """`S A + W`."""
    return survive(maps, state) + maps.write


def survive(maps: Affine, state: Tensor) -> Tensor:
    """`S A`: what is left of a state."""
    if maps.matrix is not None:
        return state @ maps.matrix
    return state if maps.log_decay is None else state * maps.log_decay.exp()


def compose(first: Affine, then: Affine) -> Affine:
    """`then` after `first`: `S -> (S A1 + W1) A2 + W2`. Associative; decays add as logarithms, so none is lost."""
    log_decay = matrix = None
    if first.matrix is not None and then.matrix is not None:
        matrix = first.matrix @ then.matrix
    elif first.log_decay is not None and then.log_decay is not None:
        log_decay = first.log_decay + then.log_decay
    return Affine(log_decay, matrix, apply(then, first.write))


def matrices(factors: Factors, keys: int) -> Shaped[Tensor, "*axes k k"]:
    """The transition matrices themselves, (..., k, k), of factors with axes (..., ·). Cost O(k^2) a step."""
    log_decay, erase, right, decayed = factors
    assert erase is not None and right is not None
    eye = torch.eye(keys, dtype=erase.dtype, device=erase.device)
    rank_one = erase.unsqueeze(-1) * right.unsqueeze(-2)
    if log_decay is None:
        return eye - rank_one
    decay = log_decay.exp().unsqueeze(-1)
    return eye * decay - (decay * rank_one if decayed else rank_one)
