"""A bonus for the current token: what RWKV's reads give it beside what the memory does."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lavagna.algebra.transition import Transition
from lavagna.modules.precision import roomy, wide
from lavagna.modules.steps import Steps

# Half of the logarithm of the largest quotient: of 1 and the smallest float32 that is not zero.
MOST = 52.0


def with_bonus(
    o: Shaped[Tensor, "b t h v"],
    q: Float[Tensor, "b t h k"],
    k: Float[Tensor, "b t h k"],
    v: Float[Tensor, "b t h v"],
    weight: Float[Tensor, "h #k"],
) -> Float[Tensor, "b t h v"]:
    """What was read, and of each step's own value as much as its key meets its query, float32 at least.

    o_t + (q_t . (weight * k_t)) v_t
    """
    met = (wide(q) * wide(k) * weight).sum(-1, keepdim=True)
    return torch.addcmul(wide(o), met, wide(v))


def recur_with_bonus(
    a: Transition,
    q: Float[Tensor, "b t h k"],
    k: Float[Tensor, "b t h k"],
    v: Float[Tensor, "b t h v"],
    memory: Shaped[Tensor, "n h v k"],
    weight: Float[Tensor, "h #k"],
    steps: Steps,
) -> tuple[Float[Tensor, "b t h v"], Shaped[Tensor, "n h v k"]]:
    """A read before the write, and a bonus for the step's own (RWKV-5 and 6); float32 at least, and the last memory.

    o_t = (S_{t-1} + v_t (weight * k_t)^T) q_t          S_t = S_{t-1} A_t + v_t k_t^T

    With a weight of 1 and nothing that fades it is a read after the write.
    """
    o, memory = steps.recur(a, roomy(q), roomy(k), roomy(v), memory, read="before")
    return with_bonus(o, q, k, v, weight), memory


class Scaled(NamedTuple):
    """Reads over e^unit, float32 at least, and the last memory."""

    read: Float[Tensor, "b t h v"]
    unit: Float[Tensor, "b t h 1"]
    memory: Shaped[Tensor, "n h v k"]


def recur_with_exponential_bonus(
    a: Transition,
    q: Float[Tensor, "b t h k"],
    k: Float[Tensor, "b t h k"],
    v: Float[Tensor, "b t h v"],
    memory: Shaped[Tensor, "n h v k"],
    log_weight: Float[Tensor, "h 1"],
    steps: Steps,
) -> Scaled:
    """The same with a weight e^u that is given by its logarithm and may be larger than any float (RWKV-5.0).

        o_t = S_{t-1} q_t + e^u (q_t . k_t) v_t          given as e^-m o_t,          m = max(0, u + log |q_t . k_t|)

    m is a unit of measure, so it is computed without gradient; what a norm makes of o_t is the same for any m.
    """
    o, memory = steps.recur(a, roomy(q), roomy(k), roomy(v), memory, read="before")
    met = (wide(q) * wide(k)).sum(-1, keepdim=True)
    log_weight = wide(log_weight)
    unit = (log_weight + met.abs().log()).clamp_min(0).detach()
    # Two factors, of which none overflows: e^(u - m) is at most 1 / |q . k|, and of no use where that is infinite.
    half = ((log_weight - unit) / 2).clamp_max(MOST).exp()
    return Scaled(wide(o) * (-unit).exp() + met * half * half * wide(v), unit, memory)
