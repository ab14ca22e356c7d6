"""Decay inside a chunk: what one step's write is worth to a later step.

Between a write at s and a read at t lies the gap `exp(sum of log_decay over s < r <= t)`. Splitting it as
`exp(G_t) exp(-G_s)` overflows under strong decay, and taking differences of long sums loses small gaps behind a large
one (or makes NaN of -inf minus -inf). Here every sum has only the steps that lie between: a chunk is halved again and
again, and at each level the later half meets the earlier one at their common border,

    gap(s, t) = exp(sum over border < r <= t) * exp(sum over s < r <= border),

two factors that each are at most 1 for a decay. The price is log2(c) small products in place of one.
Source of the two-level idea: Yang et al. 2024, arXiv 2312.06635, section 4.3; the halving is its limit.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor


@runtime_checkable
class Decay(Protocol):
    """The decays of a chunk, (..., c, ·), seen from its start, from its end and between its steps.

    `strict` reads the state before the step itself decays and writes (`S_{t-1}`), else after it (`S_t`).
    """

    def pairs(self, x: Tensor, y: Tensor, *, strict: bool) -> Tensor:
        """Lower-triangular (..., c, c): `x_t^T diag(gap(s, t)) y_s` for s <= t, or s < t and `gap(s, t - 1)`."""
        ...

    def from_start(self, x: Tensor, *, strict: bool) -> Tensor:
        """`x_t` times the decay from the chunk's start to t, (..., c, k)."""
        ...

    def to_end(self, y: Tensor) -> Tensor:
        """`y_s` times the decay from after s to the chunk's end, (..., c, k)."""
        ...

    def total(self) -> Tensor | None:
        """The logarithm of the decay of the whole chunk, (..., 1, ·), or None where there is none."""
        ...


class NoDecay:
    """Nothing fades: every gap is 1."""

    def pairs(self, x: Shaped[Tensor, "..."], y: Shaped[Tensor, "..."], *, strict: bool) -> Shaped[Tensor, "..."]:
        return torch.tril(x @ y.mT, -1 if strict else 0)

    def from_start(self, x: Shaped[Tensor, "..."], *, strict: bool) -> Shaped[Tensor, "..."]:
        return x

    def to_end(self, y: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        return y

    def total(self) -> None:
        return None


class DiagonalDecay:
    """One decay per channel, `log_decay` (..., c, k): gaps stay inside the product of the two vectors."""

    def __init__(self, log_decay: Shaped[Tensor, "*axes c k"]) -> None:
        self.steps = log_decay.shape[-2]
        self.halvings = _Halvings(log_decay)

    def pairs(self, x: Shaped[Tensor, "..."], y: Shaped[Tensor, "..."], *, strict: bool) -> Shaped[Tensor, "..."]:
        return self.halvings.pairs(x, y, strict=strict)[..., : self.steps, : self.steps]

    def from_start(self, x: Shaped[Tensor, "..."], *, strict: bool) -> Shaped[Tensor, "..."]:
        start = self.halvings.from_start[..., : self.steps, :]
        return x * (_later(start) if strict else start)

    def to_end(self, y: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
        return y * self.halvings.to_end[..., : self.steps, :]

    def total(self) -> Shaped[Tensor, "..."]:
        return self.halvings.total


class ScalarDecay(DiagonalDecay):
    """One decay per head, `log_decay` (..., c, 1): gaps are one (c, c) matrix, and the rest is matrix products."""

    def __init__(self, log_decay: Shaped[Tensor, "*axes c 1"]) -> None:
        super().__init__(log_decay)
        one = torch.ones_like(self.halvings.from_start)
        self.gaps = super().pairs(one, one, strict=False)

    def pairs(self, x: Shaped[Tensor, "..."], y: Shaped[Tensor, "..."], *, strict: bool) -> Shaped[Tensor, "..."]:
        # Before step t the gaps are those after step t - 1: the same matrix, one row lower.
        gaps = F.pad(self.gaps[..., :-1, :], (0, 0, 1, 0)) if strict else self.gaps
        # In place: the products are this function's own, and nothing but what is returned needs them.
        return (x @ y.mT).mul_(gaps)


def decay_of(log_decay: Shaped[Tensor, "..."] | None) -> Decay:
    """The decays of a chunk from their logarithms: None, last axis 1, or last axis k."""
    if log_decay is None:
        return NoDecay()
    return ScalarDecay(log_decay) if log_decay.shape[-1] == 1 else DiagonalDecay(log_decay)


class Survival(NamedTuple):
    """A decay as `keep + rest`: 1 and a little less than nothing where little fades, else 0 and the decay itself."""

    keep: Tensor
    rest: Tensor


def survival(log_decay: Shaped[Tensor, "..."] | None) -> Survival | None:
    """Split `exp(log_decay)` so that a decay near 1 is not rounded.

    A constant decay rounded to float32 is off by the same 3e-8 at every step, which adds up to 3e-3 over a memory of
    1e5 steps. `rest` is small and exact there, and `fade` adds it to what is written before it meets the memory.
    """
    if log_decay is None:
        return None
    little = log_decay.real > -0.5
    # The unused branch must be finite too, or its gradient is NaN times zero.
    less = torch.expm1(torch.where(little, log_decay, 0))
    return Survival(little.to(log_decay.dtype), torch.where(little, less, log_decay.exp()))


def fade(state: Shaped[Tensor, "..."], decay: Survival | None, write: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """`state * exp(log_decay) + write`, small terms first."""
    if decay is None:
        return state + write
    return torch.addcmul(torch.addcmul(write, state, decay.rest), state, decay.keep)


def _later(factors: Tensor) -> Tensor:
    """The factors one step later, with 1 (nothing decayed yet) in front: from after a step to before it."""
    return torch.cat([torch.ones_like(factors[..., :1, :]), factors[..., :-1, :]], -2)


class _Halvings:
    """The gaps of a chunk as a ladder of halvings, from neighboring steps up to the two halves of the chunk."""

    def __init__(self, log_decay: Tensor) -> None:
        steps = log_decay.shape[-2]
        self.levels = (steps - 1).bit_length()
        self.size = 1 << self.levels
        # Sums inside blocks of one step: up to and with t, and from after s. Zero decay pads to a power of two.
        after = F.pad(log_decay, (0, 0, 0, self.size - steps)).unsqueeze(-2)
        before = torch.zeros_like(after)
        self.borders: list[tuple[Tensor, Tensor]] = []
        self.made: list[tuple[Tensor, bool | None, list[Tensor]]] = []
        for _ in range(self.levels):
            early, late = _pair(before)[..., 0, :, :], _pair(after)[..., 1, :, :]
            self.borders.append((late.exp(), early.exp()))
            # Two blocks become one: the later one's sums begin, and the earlier one's end, a whole block further off.
            after, before = _pair(after), _pair(before)
            first, second = after[..., 0, -1:, :], after[..., 1, -1:, :]
            none = torch.zeros_like(first)
            after = (after + torch.stack([none, first], -3)).flatten(-3, -2)
            before = (before + torch.stack([second, none], -3)).flatten(-3, -2)
        self.total = after[..., 0, -1:, :]
        self.from_start = after.squeeze(-3).exp()
        self.to_end = before.squeeze(-3).exp()

    def pairs(self, x: Tensor, y: Tensor, *, strict: bool) -> Tensor:
        """The triangle of products, grown from the diagonal: two triangles and the square between them make one."""
        own = self._padded((x * y).sum(-1, keepdim=True)).unsqueeze(-2)
        triangle = torch.zeros_like(own) if strict else own
        for late, early in zip(self._lates(x, strict), self._earlies(y), strict=True):
            square = late @ early.mT
            triangle = _pair(triangle)
            top = torch.cat([triangle[..., 0, :, :], torch.zeros_like(square)], -1)
            triangle = torch.cat([top, torch.cat([square, triangle[..., 1, :, :]], -1)], -2)
        return triangle.squeeze(-3)

    def _lates(self, x: Tensor, strict: bool) -> list[Tensor]:
        """At each level the later blocks of `x`, decayed from their border; made once for one tensor."""
        return self._once(x, strict, lambda z, late, _: _pair(z)[..., 1, :, :] * (_later(late) if strict else late))

    def _earlies(self, y: Tensor) -> list[Tensor]:
        """At each level the earlier blocks of `y`, decayed to their border; made once for one tensor."""
        return self._once(y, None, lambda z, _, early: _pair(z)[..., 0, :, :] * early)

    def _once(self, x: Tensor, side: bool | None, half: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
        for tensor, known, levels in self.made:
            if tensor is x and known is side:
                return levels
        blocks, levels = self._padded(x).unsqueeze(-2), []
        for late, early in self.borders:
            levels.append(half(blocks, late, early))
            blocks = _pair(blocks).flatten(-3, -2)
        self.made.append((x, side, levels))
        return levels

    def _padded(self, x: Tensor) -> Tensor:
        missing = self.size - x.shape[-2]
        return F.pad(x, (0, 0, 0, missing)) if missing else x


def _pair(blocks: Tensor) -> Tensor:
    """Blocks (..., m, s, ·) two by two: (..., m / 2, 2, s, ·), the earlier and the later of each pair."""
    return blocks.unflatten(-3, (blocks.shape[-3] // 2, 2))
