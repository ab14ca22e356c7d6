"""Transitions: how yesterday's memory survives a step.

Every rule of the family is one value with parts left out,

    A_t = diag(exp(log_decay_t)) + left_t right_t^T,

applied to the state from the right, `S_t = S_{t-1} A_t + v_t k_t^T` with `S` of shape (value, key).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

# A logarithm that no memory survives, far from the ends of float32's range.
NEVER = -1e30


class Factors(NamedTuple):
    """What a form needs of a transition: the decay, and the two vectors of the rank-one part, what is erased and where.

    `erase` meets the state before it decays (`decayed=False`) or after (`decayed=True`):

        S_{t-1} A_t = S_{t-1} D_t - (S_{t-1} erase_t) right_t^T          or
        S_{t-1} A_t = S_{t-1} D_t - (S_{t-1} D_t erase_t) right_t^T,     D_t = diag(exp(log_decay_t)).
    """

    log_decay: Tensor | None
    erase: Tensor | None
    right: Tensor | None
    decayed: bool


@dataclass(frozen=True, eq=False)
class Transition:
    """A run of transition matrices, kept as the vectors they are made of.

    Build one with `identity`, `scalar`, `diagonal`, `householder`, `gated_householder` or `dplr`. Every part has axes
    (b, t, h, ·); `b`, `t` and `h` may each be 1 and then broadcast. A rank-one part is either `left right^T` or, when
    `beta` is given, the factor `I - beta right right^T` that follows the decay.
    """

    log_decay: Tensor | None = None
    step: Tensor | None = None
    left: Tensor | None = None
    right: Tensor | None = None
    beta: Tensor | None = None

    @property
    def parts(self) -> dict[str, Tensor]:
        """The tensors this transition is made of, by name; parts left out are absent."""
        log_decay, step, left, right, beta = self.log_decay, self.step, self.left, self.right, self.beta
        named = {"log_decay": log_decay, "step": step, "left": left, "right": right, "beta": beta}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def map(self, function: Callable[[Tensor], Tensor]) -> "Transition":
        """The transition whose every part is `function` of this one's."""
        return replace(self, **{name: function(tensor) for name, tensor in self.parts.items()})

    def factors(self) -> Factors:
        """The parts multiplied out: one `log_decay`, one `erase`, one `right`."""
        log_decay = self.log_decay
        if log_decay is not None and (self.step is not None or log_decay.is_complex()):
            log_decay = finite(log_decay)
        if log_decay is not None and self.step is not None:
            log_decay = log_decay * self.step
        if self.beta is not None and self.right is not None:
            return Factors(log_decay, self.beta * self.right, self.right, decayed=True)
        return Factors(log_decay, None if self.left is None else -self.left, self.right, decayed=False)


def finite(log_decay: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """The same decay without minus infinity, which makes NaN of complex sums and of the gradient of a step."""
    if log_decay.is_complex():
        return torch.complex(log_decay.real.clamp_min(NEVER), log_decay.imag)
    return log_decay.clamp_min(NEVER)


def shared(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A version of `function` that gives one result for one tensor, so that tensors shared before stay shared after.

    The delta rules write with the very key they erase with; forms that see it is the same tensor do half the work.
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def once(tensor: Tensor) -> Tensor:
        for before, after in seen:
            if before is tensor:
                return after
        seen.append((tensor, function(tensor)))
        return seen[-1][1]

    return once


def _rank(call: str, name: str, tensor: Tensor, wanted: str) -> Tensor:
    if not isinstance(tensor, Tensor) or tensor.ndim != 4:
        came = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise ValueError(
            f"{call}: {name} must be a tensor with axes {wanted}, but came as {came}. "
            "Axes b, t and h may be 1: a constant decay per head is (1, 1, h, 1)."
        )
    return tensor


def _per_head(call: str, name: str, tensor: Tensor) -> Tensor:
    if isinstance(tensor, Tensor) and tensor.ndim == 3:
        tensor = tensor.unsqueeze(-1)
    _rank(call, name, tensor, "(b, t, h) or (b, t, h, 1)")
    if tensor.shape[-1] != 1:
        raise ValueError(
            f"{call}: {name} is one number per head and step, (b, t, h) or (b, t, h, 1), but came as "
            f"{tuple(tensor.shape)}."
        )
    return tensor


def _step(call: str, step: Tensor) -> Tensor:
    return _per_head(call, "step", _rank(call, "step", step, "(b, t, h, 1)"))


def identity() -> Transition:
    """The transition that keeps everything: `A_t = I` (linear attention).

    Katharopoulos et al. 2020, arXiv 2006.16236.
    """
    return Transition()


def scalar(log_decay: Shaped[Tensor, "..."], *, step: Shaped[Tensor, "..."] | None = None) -> Transition:
    """One fading factor for the whole memory of a head: `A_t = exp(log_decay_t) I` (RetNet, Mamba-2, mLSTM).

    `log_decay` (b, t, h, 1) is a natural logarithm, real or complex; with `step` (b, t, h, 1) the decay is
    `log_decay * step`. Raises ValueError on another rank or last axis.

    Sun et al. 2023, arXiv 2307.08621; Dao and Gu 2024, arXiv 2405.21060.
    """
    if isinstance(log_decay, Tensor) and log_decay.ndim == 4 and log_decay.shape[-1] != 1:
        raise ValueError(
            f"scalar: log_decay must have last axis 1, but came as {tuple(log_decay.shape)}. "
            "Use diagonal(...) for one decay per key channel."
        )
    return Transition(
        log_decay=_rank("scalar", "log_decay", log_decay, "(b, t, h, 1)"),
        step=None if step is None else _step("scalar", step),
    )


def diagonal(log_decay: Shaped[Tensor, "..."], *, step: Shaped[Tensor, "..."] | None = None) -> Transition:
    """One fading factor per key channel: `A_t = diag(exp(log_decay_t))` (GLA, RWKV-5/6, Mamba, S4D, S5).

    `log_decay` (b, t, h, k) is a natural logarithm, real or complex (a negative decay has imaginary part pi); with
    `step` (b, t, h, 1) the decay is `log_decay * step`. With `k` equal columns this is `scalar`.

    Yang et al. 2024, arXiv 2312.06635.
    """
    return Transition(
        log_decay=_rank("diagonal", "log_decay", log_decay, "(b, t, h, k)"),
        step=None if step is None else _step("diagonal", step),
    )


def householder(k: Shaped[Tensor, "..."], beta: Shaped[Tensor, "..."]) -> Transition:
    """Erase along one key before writing: `A_t = I - beta_t k_t k_t^T` (DeltaNet).

    `k` (b, t, h, k), `beta` (b, t, h) or (b, t, h, 1). All eigenvalues are 1 but one, `1 - beta |k|^2`; with unit keys
    and beta up to 2 the norm is 1. The write is not included: the delta rule is
    `recur(householder(k, beta), q, k, beta * v)`.

    Where beta |k|^2 > 2 the memory grows step by step, and so does what it gives, until float32 ends at 3e38: raw keys
    of 64 channels with beta 1 get there within 60 steps, and NaN follows. Normalize the keys, or compute in float64.

    Schlag et al. 2021, arXiv 2102.11174; Yang et al. 2024, arXiv 2406.06484.
    """
    return Transition(
        right=_rank("householder", "k", k, "(b, t, h, k)"),
        beta=_per_head("householder", "beta", beta),
    )


def gated_householder(
    log_decay: Shaped[Tensor, "..."], k: Shaped[Tensor, "..."], beta: Shaped[Tensor, "..."]
) -> Transition:
    """Fade first, then erase along one key: `A_t = diag(exp(log_decay_t)) (I - beta_t k_t k_t^T)`.

    `log_decay` (b, t, h, 1) is Gated DeltaNet, (b, t, h, k) is KDA; `k` and `beta` as in `householder`, which this
    equals at log_decay 0.

    Yang, Kautz and Hatamizadeh 2025, arXiv 2412.06464; Kimi Linear 2025, arXiv 2510.26692.
    """
    return Transition(
        log_decay=_rank("gated_householder", "log_decay", log_decay, "(b, t, h, 1) or (b, t, h, k)"),
        right=_rank("gated_householder", "k", k, "(b, t, h, k)"),
        beta=_per_head("gated_householder", "beta", beta),
    )


def dplr(log_decay: Shaped[Tensor, "..."], left: Shaped[Tensor, "..."], right: Shaped[Tensor, "..."]) -> Transition:
    """Diagonal plus low rank, the general case: `A_t = diag(exp(log_decay_t)) + left_t right_t^T` (RWKV-7).

    All parts (b, t, h, k); `log_decay` may also have last axis 1. The rank-one part meets the state before it decays.
    With `left = -beta exp(log_decay) k` and `right = k` this equals `gated_householder`.

    Peng et al. 2025, arXiv 2503.14456.
    """
    return Transition(
        log_decay=_rank("dplr", "log_decay", log_decay, "(b, t, h, k)"),
        left=_rank("dplr", "left", left, "(b, t, h, k)"),
        right=_rank("dplr", "right", right, "(b, t, h, k)"),
    )
