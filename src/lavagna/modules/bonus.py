"""A bonus for the current token: what RWKV's reads give it beside what the memory does."""

from jaxtyping import Float, Shaped
from torch import Tensor

from lavagna.algebra.transition import Transition
from lavagna.modules.precision import roomy, wide
from lavagna.modules.steps import Steps


def bonus(
    q: Float[Tensor, "b t h k"],
    k: Float[Tensor, "b t h k"],
    v: Float[Tensor, "b t h v"],
    weight: Float[Tensor, "h #k"],
) -> Float[Tensor, "b t h v"]:
    """Each step's own value, as much of it as its key meets its query: `(q . (weight * k)) v`, float32 at least."""
    return (wide(q) * wide(k) * weight).sum(-1, keepdim=True) * wide(v)


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
    return wide(o) + bonus(q, k, v, weight), memory
