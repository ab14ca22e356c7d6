"""The chunkwise form: two levels, products inside a chunk and a fold from chunk to chunk."""

from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.chunk import advance, cut, fold, join, outputs
from lavagna.algebra.transition import Transition


def chunkwise(
    a: Transition,
    q: Shaped[Tensor, "b t h k"],
    k: Shaped[Tensor, "b t h k"],
    v: Shaped[Tensor, "b t h v"],
    state: Shaped[Tensor, "b h v k"],
    *,
    read: str,
    chunk: int,
) -> tuple[Shaped[Tensor, "b t h v"], Shaped[Tensor, "b h v k"]]:
    """Fold every chunk into one affine map, carry the state over the chunks, read.

    Cost O(t (chunk (k + v) + v k)), memory O(t (chunk + k + v) + t v k / chunk): linear in t. The form to train with.
    Source: Sun et al. 2023, arXiv 2307.08621; Yang et al. 2024, arXiv 2312.06635.
    """
    steps = q.shape[1]
    maps = fold(cut(a, q, k, v, chunk), read=read)
    met, last, found = advance(maps, state)
    return join(outputs(maps, met, found), steps), last
