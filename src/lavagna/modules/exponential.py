"""Exponential gates, whose weights may be larger than any float: a memory that is kept over e^m, and the m it needs."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.dispatch import CHUNK
from lavagna.modules.precision import wide
from lavagna.modules.steps import Steps

# The stabilizer of a memory in which nothing was ever written, where there is no other least one: e^-m is never taken.
NOTHING = -1e30


class Gates(NamedTuple):
    """Exponential gates of a memory over e^m. `before` and `after` are m_{t-1} and m_t, `last` m after the last step.

    `log_decay` is m_{t-1} + log f_t - m_t and `write` exp(log i_t - m_t): at most 0 and 1, but for rounding.
    """

    log_decay: Float[Tensor, "b t h c"]
    write: Float[Tensor, "b t h c"]
    before: Float[Tensor, "b t h c"]
    after: Float[Tensor, "b t h c"]
    last: Float[Tensor, "n h c"]


def exponential_gates(
    log_forget: Float[Tensor, "#b #t #h #c"],
    log_input: Float[Tensor, "b t h c"],
    stabilizer: Float[Tensor, "n h c"],
    steps: Steps,
    *,
    least: float = NOTHING,
) -> Gates:
    """Gates e^f and e^i, given by their logarithms, for a memory that is kept over e^m so that nothing overflows.

        S_t = f_t S_{t-1} + i_t w_t          becomes, with S_t = e^{m_t} M_t,
        M_t = e^{m_{t-1} + log f_t - m_t} M_{t-1} + e^{log i_t - m_t} w_t
        m_t = max(m_{t-1} + log f_t, log i_t, least)

    Every m gives the same S: it is a unit of measure, so it is computed without gradient, and what flows back through
    the memory is whole. This one keeps weights at most 1. `log_forget` is never above 0; both may be -inf (a reset; a
    step that writes nothing). `stabilizer` is the m of the memory before the call, `least` or more; it gets the
    gradient of the memory's unit. With `least` 0 all e^-m are at most 1.

    O(t) work in O(log t) passes, float32 at least. A masked step is an exact no-op, packed sequences start each from
    its own `stabilizer`. Maxima of sums are taken over a tree, which needs no difference of sums and so knows -inf.

    Beck et al. 2024, arXiv 2405.04517, equation 15; the tree: Blelloch 1990.
    """
    log_input = wide(log_input)
    log_forget = wide(log_forget).expand_as(log_input)
    start = stabilizer.to(log_input.dtype)
    ragged = steps.rows is not None

    def run(gates: Tensor, counts: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        forget, given = gates.unbind(2)
        if not given.shape[1]:
            return gates.new_zeros(gates.shape), start.clone()
        if ragged:
            behind = (torch.arange(given.shape[1], device=given.device) >= counts[:, None])[:, :, None, None]
            forget, given = forget.masked_fill(behind, 0), given.masked_fill(behind, -torch.inf)
        after = _maxima(forget, given, start.detach()).clamp_min(least)
        before = torch.cat([start.unsqueeze(1), after[:, :-1]], 1)
        last = after[:, -1].clone()
        if ragged:
            last = torch.where((counts == 0)[:, None, None], start, last)
        return torch.stack([before, after], 2), last

    shifts, last = steps.by_rows(run, torch.stack([log_forget, log_input], 2).detach(), start)
    before, after = shifts.unbind(2)
    # In this order: the difference of neighbors is exact, or as large as the gate.
    return Gates((before - after) + log_forget, (log_input - after).exp(), before, after, last)


def _maxima(forget: Tensor, given: Tensor, start: Tensor) -> Tensor:
    """m after each step of axis 1: `max(m + forget, given)`, from `start`."""
    if torch.compiler.is_compiling():
        return _maxima_in_chunks(forget, given, start)
    first = torch.maximum(start.unsqueeze(1) + forget[:, :1], given[:, :1])
    return _prefixes(forget, torch.cat([first, given[:, 1:]], 1))


def _maxima_in_chunks(forget: Tensor, given: Tensor, start: Tensor) -> Tensor:
    """The same in whole chunks, whose sizes a compiler knows: one graph serves many lengths, and is made quickly."""
    length = given.shape[1]
    place = torch.arange(-(-length // CHUNK) * CHUNK, device=given.device)
    behind, place = (place >= length)[:, None, None], place.clamp(max=length - 1)
    forget = forget.index_select(1, place).masked_fill(behind, 0).unflatten(1, (-1, CHUNK))
    given = given.index_select(1, place).masked_fill(behind, -torch.inf).unflatten(1, (-1, CHUNK))
    reach = 1
    while reach < CHUNK:
        none = torch.zeros_like(forget[:, :, :reach])
        earlier = torch.cat([none - torch.inf, given[:, :, :-reach]], 2)
        given = torch.maximum(given, earlier + forget)
        forget = forget + torch.cat([none, forget[:, :, :-reach]], 2)
        reach *= 2
    met = []
    for sums, maxima in zip(forget.unbind(1), given.unbind(1), strict=True):
        met.append(torch.maximum(start.unsqueeze(1) + sums, maxima))
        start = met[-1][:, -1]
    return torch.cat(met, 1).index_select(1, torch.arange(length, device=given.device))


def _prefixes(forget: Tensor, given: Tensor) -> Tensor:
    """The maximum that each step sees of all before it, pair by pair as in the scan form."""
    count = given.shape[1]
    if count == 1:
        return given
    even, odd, forgets = slice(0, count - 1, 2), slice(1, count, 2), forget[:, 1::2]
    pairs = _prefixes(forget[:, even] + forgets, torch.maximum(given[:, even] + forgets, given[:, odd]))
    between = torch.maximum(pairs[:, : (count - 1) // 2] + forget[:, 2::2], given[:, 2::2])
    first = torch.cat([given[:, :1], between], 1)
    both = torch.stack([first[:, : pairs.shape[1]], pairs], 2).flatten(1, 2)
    return torch.cat([both, first[:, pairs.shape[1] :]], 1)
