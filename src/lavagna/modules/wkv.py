"""WKV, RWKV-4's average: weights that fade with distance and grow with the exponential of a key of any size."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import scalar
from lavagna.modules.exponential import NOTHING, exponential_gates
from lavagna.modules.precision import wide, wide_dtype
from lavagna.modules.steps import Steps


class Averaged(NamedTuple):
    """The average at every step, float32 at least, and the sums after the last, over e^stabilizer."""

    y: Float[Tensor, "b t c"]
    memory: Float[Tensor, "n c 2 1"]
    stabilizer: Float[Tensor, "n c 1"]


def wkv(
    log_decay: Float[Tensor, " c"],
    u: Float[Tensor, " c"],
    k: Float[Tensor, "b t c"],
    v: Float[Tensor, "b t c"],
    memory: Float[Tensor, "n c 2 1"],
    stabilizer: Float[Tensor, "n c 1"],
    steps: Steps,
) -> Averaged:
    """The average of every value so far, each channel by itself, this step's with a bonus u:

        y_t = (a_{t-1} + e^{u + k_t} v_t) / (b_{t-1} + e^{u + k_t})
        a_t = e^w a_{t-1} + e^{k_t} v_t          b_t = e^w b_{t-1} + e^{k_t}          w = log_decay < 0

    a and b are the two value rows of a memory with one key a channel, kept over e^m (`exponential_gates`), so keys of
    +-100 and beyond are exact, forward and backward, in every form: the divisor is never below 1. In one pass where
    there is a kernel for it and no form was asked for.

    Peng et al. 2023, arXiv 2305.13048, section 3 and appendix D.
    """
    fused = steps.fused("wkv", k, k, v)
    if fused is not None:
        return Averaged(*fused(log_decay, u, k, v, memory, stabilizer, real=steps.mask, offsets=steps.offsets))
    k, v = wide(k), wide(v)
    gates = exponential_gates(log_decay.to(k.dtype)[None, None, :, None], k[..., None], stabilizer, steps)
    rows = torch.stack([v, torch.ones_like(v)], -1)
    one = torch.ones_like(gates.write)
    past, memory = steps.recur(scalar(gates.log_decay), one, gates.write, rows, memory, read="before")
    before, now = gates.before.squeeze(-1), u + k
    # A unit of measure, as m is: it drops out of the quotient, and so does its gradient.
    unit = torch.maximum(before, now).detach()
    before, now = (before - unit).exp(), (now - unit).exp()
    a, b = past.unbind(-1)
    return Averaged((before * a + now * v) / (before * b + now), memory, gates.last)


def initial_sums(channels: int, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """The `memory` and the `stabilizer` before the first step: sums of nothing."""
    wanted = wide_dtype(dtype)
    return {
        "memory": torch.zeros(batch, channels, 2, 1, device=device, dtype=wanted),
        "stabilizer": torch.full((batch, channels, 1), NOTHING, device=device, dtype=wanted),
    }
