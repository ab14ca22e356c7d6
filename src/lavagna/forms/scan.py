"""The scan form: a balanced tree over the steps."""

import torch
from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.affine import Affine, apply, compose, matrices
from lavagna.algebra.transition import Transition


def scan(
    a: Transition,
    q: Shaped[Tensor, "b t h k"],
    k: Shaped[Tensor, "b t h k"],
    v: Shaped[Tensor, "b t h v"],
    state: Shaped[Tensor, "b h v k"],
    *,
    read: str,
    chunk: int,
) -> tuple[Shaped[Tensor, "b t h v"], Shaped[Tensor, "b h v k"]]:
    """All prefixes of the product by pairing neighbors: depth log2(t) where the fold has depth t.

    Cost O(t v k), O(t (v + k) k^2) with a rank-one part; memory O(t v k): every state is held. `chunk` is not used.
    Source: Blelloch 1990, prefix sums and their applications.
    """
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    factors = a.map(lambda x: x.transpose(1, 2)).factors()
    write = v.unsqueeze(-1) * k.unsqueeze(-2)
    if factors.erase is not None:
        steps = Affine(None, matrices(factors, k.shape[-1]), write)
    else:
        steps = Affine(None if factors.log_decay is None else factors.log_decay.unsqueeze(-2), None, write)
    first = apply(steps.at(0, 1), state.unsqueeze(2))
    steps = steps._replace(write=torch.cat([first, write[:, :, 1:]], 2))
    states = _prefixes(steps).write
    read_from = torch.cat([state.unsqueeze(2), states[:, :, :-1]], 2) if read == "before" else states
    return (read_from @ q.unsqueeze(-1)).squeeze(-1).transpose(1, 2), states[:, :, -1].clone()


def _prefixes(steps: Affine) -> Affine:
    """The composition of the first 1, 2, ..., t maps, along axis 2."""
    count = steps.write.shape[2]
    if count == 1:
        return steps
    # Odd prefixes are the prefixes of the pairs; even ones are one step further.
    pairs = _prefixes(compose(steps.at(0, count - 1, 2), steps.at(1, count, 2)))
    between = compose(pairs.at(0, (count - 1) // 2), steps.at(2, count, 2))
    log_decay, matrix, write = (
        None if own is None or even is None or odd is None else _alternate(torch.cat([own[:, :, :1], even], 2), odd)
        for own, even, odd in zip(steps, between, pairs, strict=True)
    )
    assert write is not None
    return Affine(log_decay, matrix, write)


def _alternate(even: Tensor, odd: Tensor) -> Tensor:
    """`even[0], odd[0], even[1], ...` along axis 2; `even` may have one more."""
    count = odd.shape[2]
    both = torch.stack([even[:, :, :count], odd], 3).flatten(2, 3)
    return torch.cat([both, even[:, :, count:]], 2)
