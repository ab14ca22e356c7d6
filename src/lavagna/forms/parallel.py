"""The parallel form: one flat level, every pair of steps at once."""

from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.transition import Transition
from lavagna.forms.chunkwise import chunkwise


def parallel(
    a: Transition,
    q: Shaped[Tensor, "b t h k"],
    k: Shaped[Tensor, "b t h k"],
    v: Shaped[Tensor, "b t h v"],
    state: Shaped[Tensor, "b h v k"],
    *,
    read: str,
    chunk: int,
) -> tuple[Shaped[Tensor, "b t h v"], Shaped[Tensor, "b h v k"]]:
    """The whole text as a single chunk: a triangle of (t, t) scores per head, as attention has it.

    Cost O(t^2 (k + v)), memory O(t^2). In float32 a rank-one part of norm 1 (beta 2) loses digits over a triangle this
    large: about 1e-5 at t = 1000, where chunks lose 4e-6. `chunk` is not used.
    """
    return chunkwise(a, q, k, v, state, read=read, chunk=q.shape[1])
