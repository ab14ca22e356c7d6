"""A run of steps folded into one affine map of the state it meets.

Inside a chunk let `u_t = -S erase_t` be what the rank-one part adds along `right_t`. Then the state only decays and is
written to, by `u` and by `v`, and the reads of earlier `u` are a strictly lower-triangular system (the WY form):

    (I + E) u = -W v - erase S_0^T,     E_ts = erase_t^T gap right_s,     W_ts = erase_t^T gap k_s     (s < t).

One triangular solve gives `u = base - recall S_0^T`, and with it outputs and the next state as affine maps of S_0.
Where `right` is the very key that is written (the delta rules), `u + v` obeys `(I + E) (u + v) = v - erase S_0^T`, and
one product serves both. Sources: Yang et al. 2024, arXiv 2406.06484 and 2412.06464.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.decay import Survival, decay_of, fade, survival
from lavagna.algebra.transition import Transition, shared


class Chunks(NamedTuple):
    """Steps cut into chunks: every tensor (b, h, n, c, ·), the last chunk filled up with steps that do nothing."""

    a: Transition
    q: Tensor
    k: Tensor
    v: Tensor


class Fold(NamedTuple):
    """Chunks as affine maps of the state S that each meets; axes (b, h, n, ·, ·), absent parts are zero.

    u = base - recall S^T       output = query S^T + pairs u + local       S' = S decay + u^T keys + write
    """

    query: Tensor
    decay: Survival | None
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
    if torch.compiler.is_compiling():
        # A pad of nothing has other strides when it runs than when it is compiled, and would be a graph of its own.
        place = torch.arange(count * size, device=x.device)
        x = x.index_select(1, place.clamp(max=t - 1)).masked_fill((place >= t)[:, None, None], 0)
    elif count * size != t:
        x = F.pad(x, (0, 0, 0, 0, 0, count * size - t))
    return x.reshape(b, count, size, h, last).permute(0, 3, 1, 2, 4).contiguous()


def join(x: Shaped[Tensor, "b h n c last"], steps: int) -> Shaped[Tensor, "b t h last"]:
    """The inverse of `cut` for one tensor: the first `steps` steps, (b, t, h, ·)."""
    b, h, count, size, last = x.shape
    whole = x.permute(0, 2, 3, 1, 4).reshape(b, count * size, h, last)
    if torch.compiler.is_compiling():
        # A slice of everything is contiguous where others are not, and would be a graph of its own.
        return whole.index_select(1, torch.arange(steps, device=x.device))
    return whole[:, :steps]


def fold(chunks: Chunks, *, read: str) -> Fold:
    """Each chunk as one affine map of the state it will meet. Cost O(c^2 (k + v)) a chunk, all chunks at once."""
    a, q, k, v = chunks
    log_decay, erase, right, decayed = a.factors()
    decay, strict = decay_of(log_decay), read == "before"
    total = survival(decay.total())
    # What is used once is used where it is made: fewer numbers live at a time, and they stay in the cache.
    if erase is None or right is None:
        local, write = decay.pairs(q, k, strict=strict) @ v, v.mT @ decay.to_end(k)
        return Fold(decay.from_start(q, strict=strict), total, local=local, write=write)
    erased = decay.pairs(erase, right, strict=not decayed)
    recall = _solve(erased, decay.from_start(erase, strict=not decayed))
    if right is k:
        base, local, write = _solve(erased, v), None, None
    else:
        written = torch.tril(decay.pairs(erase, k, strict=not decayed), -1)
        base = -_solve(erased, written @ v)
        local, write = decay.pairs(q, k, strict=strict) @ v, v.mT @ decay.to_end(k)
    return Fold(
        decay.from_start(q, strict=strict),
        total,
        local=local,
        write=write,
        recall=recall,
        base=base,
        pairs=decay.pairs(q, right, strict=strict),
        keys=decay.to_end(right),
    )


def _solve(erased: Tensor, x: Tensor) -> Tensor:
    """`(I + E)^-1 x`, E the part of `erased` below its diagonal: the solver reads no more of it."""
    # Solved as x^T (I + E)^-T: the solver works by columns, which these are, and need not turn what comes and goes.
    return torch.linalg.solve_triangular(erased.mT, x.mT, upper=True, left=False, unitriangular=True).mT


def advance(fold: Fold, state: Shaped[Tensor, "b h v k"]) -> tuple[Tensor, Tensor, Tensor | None]:
    """Carry a state through the chunks in order: the state each meets (b, h, n, v, k), the last one, and `u`."""
    shape, count = state.shape, fold.query.shape[2]
    state = state.flatten(0, 1)
    writes, recalls, bases, keys = (_each(x) for x in (fold.write, fold.recall, fold.base, fold.keys))
    decays = None if fold.decay is None else [Survival(*pair) for pair in zip(*map(_each, fold.decay), strict=True)]
    met, found = [], []
    for i in range(count):
        met.append(state)
        write = None if writes is None else writes[i]
        if recalls is not None and bases is not None and keys is not None:
            u = torch.baddbmm(bases[i], recalls[i], state.mT, alpha=-1)
            write = u.mT @ keys[i] if write is None else torch.baddbmm(write, u.mT, keys[i])
            found.append(u)
        assert write is not None
        state = fade(state, None if decays is None else decays[i], write)
    us = torch.stack(found, 1).unflatten(0, shape[:2]) if found else None
    return torch.stack(met, 1).unflatten(0, shape[:2]), state.unflatten(0, shape[:2]), us


def _each(x: Tensor | None) -> tuple[Tensor, ...] | None:
    """Chunk after chunk of (b, h, n, ·, ·), as (b h, ·, ·)."""
    return None if x is None else x.flatten(0, 1).unbind(1)


def outputs(fold: Fold, met: Shaped[Tensor, "b h n v k"], found: Tensor | None) -> Shaped[Tensor, "b h n c v"]:
    """What every step reads, given the state its chunk met and what its rank-one parts add."""
    out = _plus(fold.local, fold.query, met.mT)
    return out if found is None or fold.pairs is None else _plus(out, fold.pairs, found)


def _plus(base: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """`base + x y` over axes (b, h, n, ·, ·), in one pass and in the memory of `base`, which is a product of ours."""
    if base is None:
        return x @ y
    return base.flatten(0, 2).baddbmm_(x.flatten(0, 2), y.flatten(0, 2)).unflatten(0, base.shape[:3])
