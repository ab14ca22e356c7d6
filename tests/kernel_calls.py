"""A call of every operator over steps of the CPU kernels, one or a few for each kind of what it serves."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.kernels.cpu import narrow, operators, response, selective, short_conv, slstm, wkv
from lavagna.modules.exponential import NOTHING

STEPS = 65
MASK = torch.arange(STEPS)[None] % 3 > 0
BORDERS = torch.tensor([0, STEPS])


class Operator(NamedTuple):
    """An operator, the tensors of a call of it (1, t, ...), what follows mask and borders, and what it returns."""

    function: Any
    tensors: tuple[Tensor | None, ...]
    options: tuple[bool, ...] = ()
    keeps: bool = True
    results: int = 2

    def given(self, mask: Tensor | None, borders: Tensor | None, *, keep: bool) -> tuple:
        """Its arguments, tensors with gradients where these are kept."""
        tensors = (None if x is None else x.detach().requires_grad_(keep) for x in self.tensors)
        return (*tensors, mask, borders, *self.options, *([keep] if self.keeps else []))


def drawn(*shape: int, dtype=torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def unit(*shape: int) -> Tensor:
    return F.normalize(drawn(*shape), dim=-1)


def recurrences() -> dict[str, Operator]:
    q, k, v, state = drawn(1, STEPS, 2, 5), unit(1, STEPS, 2, 5), drawn(1, STEPS, 4, 3), drawn(1, 4, 3, 5)
    decay, beta = -drawn(1, STEPS, 4, 1).abs(), drawn(1, STEPS, 4, 1).sigmoid()
    stepped, turning = -drawn(1, 1, 2, 5).abs(), torch.complex(-drawn(1, STEPS, 2, 5).abs(), drawn(1, STEPS, 2, 5))
    step, left = drawn(1, STEPS, 1, 1).abs(), -0.5 * k
    few, many, memories = drawn(1, STEPS, 1, 1), drawn(1, STEPS, 40, 1), drawn(1, 40, 1, 1)
    fade, turns = many.sigmoid(), torch.complex(-drawn(1, STEPS, 40, 1).abs(), drawn(1, STEPS, 40, 1))
    whole, apart = operators.FORWARD, narrow.FORWARD
    return {
        "gated householder": Operator(whole, (q, k, v, decay, None, beta, None, state), (True, False)),
        "dplr, before": Operator(whole, (q, k, v, decay, None, left, k.clone(), state), (False, True)),
        "diagonal with step": Operator(whole, (q, k, v, stepped, step, None, None, state), (False, False)),
        "complex": Operator(whole, (q, k, v, turning, None, None, None, state + 0j), (False, False)),
        "narrow": Operator(apart, (few, few.clone(), many, -many.abs(), step, None, memories), (False,)),
        "narrow, erased": Operator(apart, (few, unit(1, STEPS, 1, 1), many, None, None, fade, memories), (False,)),
        "narrow, complex, before": Operator(apart, (few, few.clone(), many, turns, None, None, memories + 0j), (True,)),
    }


def others() -> dict[str, Operator]:
    x, dt, A, B, C = drawn(1, STEPS, 5), drawn(1, STEPS, 5).abs(), -drawn(5, 4).abs(), *drawn(2, 1, STEPS, 4)
    u, sums, stabilizer = drawn(5), drawn(1, 5, 2, 1).abs(), drawn(1, 5, 1)
    gates, cells = drawn(4, 1, STEPS, 2, 6), drawn(4, 1, 2, 6).abs()
    mixing = drawn(2, 24, 6) * 6**-0.5
    fresh = (*torch.zeros(3, 1, 2, 6, dtype=torch.float64), torch.full((1, 2, 6), NOTHING, dtype=torch.float64))
    scan, filters = selective._FORWARD, (drawn(1, STEPS, 6), drawn(6, 4), drawn(6), drawn(1, 3, 6))
    x6, taps, bias, window = filters
    fading = torch.polar(drawn(5, 3).sigmoid(), drawn(5, 3))
    system = (fading, *drawn(2, 5, 3, dtype=torch.complex128), drawn(1, 5, 3, dtype=torch.complex128))
    return {
        "response": Operator(response._FORWARD, (x, *system)),
        "response, real": Operator(response._FORWARD, (x, *(part.real.clone() for part in system))),
        "selective scan": Operator(scan, (x, dt, A, B, C, u, drawn(1, 5, 1, 4))),
        "selective scan without skip": Operator(scan, (x, dt, A, B, C, None, drawn(1, 5, 1, 4))),
        "wkv": Operator(wkv._FORWARD, (-drawn(5).abs(), u, x, dt, sums, stabilizer), results=3),
        "slstm": Operator(slstm._FORWARD, (*gates, drawn(4, 2, 6), mixing, *cells), results=5),
        "slstm from nothing": Operator(slstm._FORWARD, (*gates, drawn(4, 2, 6), mixing, *fresh), results=5),
        "short conv": Operator(short_conv._FORWARD, (x6, taps, bias, window), (True,), False),
        "short conv alone": Operator(short_conv._FORWARD, (x6, taps, None, window), (False,), False),
    }


EVERY = recurrences() | others()
# What calls them.
DIRECT = {operators.FORWARD: operators.RUN, narrow.FORWARD: narrow.RUN} | {
    module._FORWARD: module._RUN for module in (response, selective, short_conv, slstm, wkv)
}
