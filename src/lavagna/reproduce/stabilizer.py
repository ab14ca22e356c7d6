"""The stabilizer of mLSTM: subtracting m changes no number, if the floor of the denominator is rescaled too."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from lavagna.algebra.transition import scalar
from lavagna.dispatch import recur
from lavagna.modules.exponential import exponential_gates
from lavagna.modules.steps import Steps
from lavagna.reproduce.forms import ways
from lavagna.reproduce.row import Row, unprinted

TITLE = (
    "mLSTM divides by max(|n.q|, 1). Over e^m the floor is e^-m, and reads are the plain ones, whatever the gates; "
    "left at 1 it makes -0.3 of a read of -3, and something else over another m."
)
SOURCE = "Beck et al. 2024, arXiv 2405.04517, the stabilized form in its appendix."

# Values, logarithms of input gates, forget gates before the sigmoid; under one key of 1 and a query of -1.
READS = {
    "one write of 3, i = e^200": ([3.0], [200.0], [0.0], -3.0),
    "one write of 3, i = e^-2": ([3.0], [-2.0], [0.0], -3 * math.exp(-2)),
    "7, then 3 with i = e^200, f = e^-1000": ([7.0, 3.0], [0.0, 200.0], [0.0, -1000.0], -3.0),
    "7, then 3 with i = e^-200, f = 1": ([7.0, 3.0], [0.0, -200.0], [0.0, 1000.0], -7.0),
    "7 and 3 with i = e^1000, f = 1": ([7.0, 3.0], [1000.0, 1000.0], [0.0, 1000.0], -5.0),
}
STEPS, CHANNELS = 24, 4


def read(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_input: Tensor,
    log_forget: Tensor,
    *,
    floor: str = "rescaled",
    unit: float = 0.0,
    **options: Any,
) -> Tensor:
    """Every read (t, v) of one head from an empty memory over e^unit: q, k (t, k), v (t, v), its gates (t,).

    The floor is "rescaled" with the memory or "left" at 1.
    """
    q, k, v = (x[None, :, None] for x in (q, k, v))
    log_input, log_forget = (x[None, :, None, None] for x in (log_input, log_forget))
    start = torch.full((1, 1, 1), unit, dtype=v.dtype)
    gates = exponential_gates(log_forget, log_input, start, Steps("stabilizer", v), least=0.0)
    both = torch.cat([v, torch.ones_like(v[..., :1])], -1) * gates.write
    out = recur(scalar(gates.log_decay), q, k, both, **options).output
    least = (-gates.after).exp() if floor == "rescaled" else torch.ones_like(gates.after)
    return (out[..., :-1] / torch.maximum(out[..., -1:].abs(), least))[0, :, 0]


def last(v: list[float], log_input: list[float], forget: list[float], *, query: float = -1.0, **options: Any) -> float:
    """The last read of a head of one channel whose keys are 1; `forget` before the sigmoid."""
    values, inputs, forgets = (torch.tensor(x, dtype=torch.float64) for x in (v, log_input, forget))
    key = torch.ones_like(values)[:, None]
    return read(query * key, key, values[:, None], inputs, logsigmoid(forgets), **options)[-1].item()


def extremes() -> list[Row]:
    """Gates that plain numbers cannot hold, in every form."""
    return [
        unprinted("stabilizer", f"{what}; {way}", right, last(*gates, **options), within=1e-12)
        for what, (*gates, right) in READS.items()
        for way, options in ways((1,)).items()
    ]


def floors() -> list[Row]:
    """One write of 3 with i = e^3, asked for by a query of -0.1: |n.q| is 2, above the floor of 1, so the read is -3.

    Over e^3 the sums are -0.3 and 0.1, over e^5 less: a floor that stays at 1 divides by itself.
    """
    one = [3.0], [3.0], [torch.inf]
    rights = {"rescaled": (-3.0, -3.0), "left": (-0.3, -0.3 * math.exp(-2))}
    return [
        unprinted(
            "stabilizer",
            f"i = e^3, query -0.1, over e^{3 if unit == 0 else unit:g}, floor {floor}",
            right,
            last(*one, query=-0.1, floor=floor, unit=unit),
            within=1e-12,
        )
        for floor, pair in rights.items()
        for unit, right in zip((0.0, 5.0), pair, strict=True)
    ]


def plain(seed: int) -> Row:
    """Random steps with gates that plain numbers can hold: the stabilized reads beside the plain ones."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, STEPS, CHANNELS, dtype=torch.float64, generator=generator)
    log_input, forget = torch.randn(2, STEPS, dtype=torch.float64, generator=generator)
    S, n, reads = torch.zeros(CHANNELS, CHANNELS, dtype=torch.float64), torch.zeros(CHANNELS, dtype=torch.float64), []
    for t in range(STEPS):
        i, f = log_input[t].exp(), forget[t].sigmoid()
        S, n = f * S + i * torch.outer(v[t], k[t]), f * n + i * k[t]
        reads.append(S @ q[t] / (n @ q[t]).abs().clamp_min(1))
    ours = read(q, k, v, log_input, logsigmoid(forget))
    difference = (ours - torch.stack(reads)).abs().max().item()
    return unprinted("stabilizer", "difference: reads over e^m, plain reads", 0.0, difference, within=1e-12)


def rows(*, seed: int = 0) -> list[Row]:
    """Extreme gates, both floors, and a random text."""
    return [*extremes(), *floors(), plain(seed)]
