"""A run of steps folded into one affine map of the state it meets.

Inside a chunk let `u_t` be what the rank-one part finds in memory, `u_t = S left_t` just before step t writes it back
along `right_t`. Then the state only decays and is written to, by `u` and by `v`, and the reads of `u` among the
writes are a strictly lower-triangular system (the WY representation):

    (I - M) u = N v + left' S_0^T,      M_ts = left_t^T gap right_s,     N_ts = left_t^T gap k_s   (s < t).

One triangular solve gives `u = base + recall S_0^T`, and with it outputs and the next state as affine maps of S_0.
Where `right` is the very key that is written (the delta rules), `y = u + v` obeys `(I - M) y = v + left' S_0^T` and one
product serves both. Sources: Yang et al. 2024, arXiv 2406.06484 and 2412.06464.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.decay import decay_of
from lavagna.algebra.transition import Transition, shared


class Chunks(NamedTuple):
    """Steps cut into chunks: every tensor (b, h, n, c, ·), the last chunk filled up with steps that do nothing."""

    a: Transition
    q: Tensor
    k: Tensor
    v: Tensor


class Fold(NamedTuple):
    """Chunks as affine maps of the state S that each meets; axes (b, h, n, ·, ·), absent parts are zero.

    u = base + recall S^T       output = query S^T + pairs u + local       S' = S decay + u^T keys + write
    """

    query: Tensor
    decay: Tensor | None
    local: Tensor | None = None
    write: Tensor | None = None
    recall: Tensor | None = None
    base: Tensor | None = None
    pairs: Tensor | None = None
    keys: Tensor | None = None


def cut(a: Transition, q: Tensor, k: Tensor, v: Tensor, size: int) -> Chunks:
    """The steps (b, t, h, ·) in chunks of `size`: (b, h, n, size, ·). Filled-up steps are exact no-ops (all zero)."""
    split = shared(lambda x: _split(x, size))
    return Chunks(a.map(split), split(q), split(k), split(v))


def _split(x: Tensor, size: int) -> Tensor:
    b, t, h, last = x.shape
    count = -(-t // size)
    if count * size != t:
        x = F.pad(x, (0, 0, 0, 0, 0, count * size - t))
    return x.reshape(b, count, size, h, last).permute(0, 3, 1, 2, 4).contiguous()


def join(x: Shaped[Tensor, "b h n c last"], steps: int) -> Shaped[Tensor, "b t h last"]:
    """The inverse of `cut` for one tensor: the first `steps` steps, (b, t, h, ·)."""
    b, h, count, size, last = x.shape
    return x.permute(0, 2, 3, 1, 4).reshape(b, count * size, h, last)[:, :steps]


def fold(chunks: Chunks, *, read: str) -> Fold:
    """Each chunk as one affine map of the state it will meet. Cost O(c^2 (k + v)) a chunk, all chunks at once."""
    a, q, k, v = chunks
    log_decay, left, right, decayed = a.factors()
    decay = decay_of(log_decay)
    strict = read == "before"
    query, keys = decay.from_start(q, strict=strict), decay.to_end(k)
    total = decay.total()
    scores = decay.pairs(q, k, strict=strict)
    if left is None or right is None:
        return Fold(query, total, local=scores @ v, write=v.mT @ keys)
    recall = decay.from_start(left, strict=not decayed)
    if right is k:
        found = _strictly_lower(decay.pairs(left, k, strict=not decayed), decayed)
        base, recall = _solve(found, v, recall)
        return Fold(query, total, recall=recall, base=base, pairs=scores, keys=keys)
    found = _strictly_lower(decay.pairs(left, right, strict=not decayed), decayed)
    wrote = _strictly_lower(decay.pairs(left, k, strict=not decayed), decayed)
    base, recall = _solve(found, wrote @ v, recall)
    return Fold(
        query,
        total,
        local=scores @ v,
        write=v.mT @ keys,
        recall=recall,
        base=base,
        pairs=decay.pairs(q, right, strict=strict),
        keys=decay.to_end(right),
    )


def _strictly_lower(pairs: Tensor, needed: bool) -> Tensor:
    return torch.tril(pairs, -1) if needed else pairs


def _solve(found: Tensor, base: Tensor, recall: Tensor) -> tuple[Tensor, Tensor]:
    """`(I - found)^-1` applied to both, by one triangular solve."""
    both = torch.linalg.solve_triangular(-found, torch.cat([base, recall], -1), upper=False, unitriangular=True)
    return both[..., : base.shape[-1]], both[..., base.shape[-1] :]


def advance(fold: Fold, state: Shaped[Tensor, "b h v k"]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Carry a state through the chunks in order: the state each meets (b, h, n, v, k), the last one, and `u`."""
    met, found = [], []
    decays, writes, recalls, bases, keys = (
        None if x is None else x.unbind(2) for x in (fold.decay, fold.write, fold.recall, fold.base, fold.keys)
    )
    for i in range(fold.query.shape[2]):
        met.append(state)
        after = state if decays is None else state * decays[i]
        if recalls is not None and bases is not None and keys is not None:
            found.append(bases[i] + recalls[i] @ state.mT)
            after = after + found[-1].mT @ keys[i]
        state = after if writes is None else after + writes[i]
    return torch.stack(met, 2), state, torch.stack(found, 2) if found else None


def outputs(fold: Fold, met: Shaped[Tensor, "b h n v k"], found: Tensor | None) -> Shaped[Tensor, "b h n c v"]:
    """What every step reads, given the state its chunk met and what the rank-one parts found."""
    out = fold.query @ met.mT
    if fold.local is not None:
        out = out + fold.local
    if found is not None and fold.pairs is not None:
        out = out + fold.pairs @ found
    return out
