"""Causal softmax attention over what is cached and what is new, row by row without holes."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lavagna.modules.precision import roomy

# Queries that are read at once where a window is shorter.
BLOCK = 128


def append(
    cache: Float[Tensor, "n s h k"],
    new: Float[Tensor, "n l h k"],
    seen: Int[Tensor, " n"],
    total: Int[Tensor, " n"] | None,
) -> Float[Tensor, "n m h k"]:
    """Each row's `seen` cached entries followed by its `total - seen` new ones, zeros behind; m is the longest row.

    `total` None means that nothing is cached and every new entry is real: the plain start of a text, kept fast.
    """
    # A cache kept in float32 under autocast stays float32: what it holds is never rounded a second time.
    kept = torch.promote_types(cache.dtype, new.dtype)
    if total is None:
        return new.to(kept)
    both = torch.cat([cache.to(kept), new.to(kept)], 1)
    length = int(total.max()) if len(total) else 0
    place = torch.arange(length, device=both.device)
    source = torch.where(place < seen[:, None], place, place - seen[:, None] + cache.shape[1])
    return picked(both, source, place < total[:, None])


def newest(
    entries: Float[Tensor, "n m h k"], total: Int[Tensor, " n"] | None, most: int | None
) -> Float[Tensor, "n s h k"]:
    """The last `most` of each row's `total` entries, zeros behind; all where that is None. `total` as for `append`."""
    if most is None or entries.shape[1] <= most:
        return entries
    if total is None:
        # Without the clone a row would keep the memory of all that it no longer holds.
        return entries[:, entries.shape[1] - most :].clone()
    kept = total.clamp(max=most)
    place = torch.arange(most, device=entries.device)
    real = place < kept[:, None]
    return picked(entries, place + (total - kept)[:, None], real)


def picked(entries: Tensor, source: Tensor, real: Tensor) -> Tensor:
    """Entry `source` of each row where `real`, else zero."""
    source = torch.where(real, source, 0)[:, :, None, None]
    return entries.gather(1, source.expand(-1, -1, *entries.shape[2:])) * real[:, :, None, None]


def visible(
    seen: Int[Tensor, " n"], queries: int, keys: int, window: int | None = None, *, first: int = 0
) -> Bool[Tensor, "n 1 l m"]:
    """Which of the keys from `first` on query j of each row may see: those at or before its own place, `seen + j`.

    With a window they are the last `window` of those, its own counted.
    """
    own = (seen[:, None] + torch.arange(queries, device=seen.device))[:, :, None]
    place = torch.arange(first, first + keys, device=seen.device)
    seeable = place <= own
    return (seeable if window is None else seeable & (place > own - window)).unsqueeze(1)


def attend(
    q: Float[Tensor, "n l hq k"],
    k: Float[Tensor, "n m h k"],
    v: Float[Tensor, "n m h v"],
    seen: Int[Tensor, " n"] | None,
    *,
    window: int | None = None,
) -> Float[Tensor, "n l hq v"]:
    """`softmax(q k^T / sqrt(k)) v` over the keys that each query may see, all queries at once.

    `seen` tells how many keys of each row come before its first query, with a window fewer than that; None where there
    are none in any row. Query head i reads head i // (hq / h) of keys and values. Time O(l m), or O(l window).
    """
    if window is not None and window >= k.shape[1]:
        window = None
    if window is None and seen is None:
        return _read(q, k, v, None)
    first = torch.zeros(len(q), dtype=torch.int64, device=q.device) if seen is None else seen
    block = q.shape[1] if window is None else max(window, BLOCK)
    if window is None or q.shape[1] <= block:
        return _read(q, k, v, visible(first, q.shape[1], k.shape[1], window))
    # No row has as many as `window` keys before its first query, so the keys of a block of queries lie in one span.
    ahead, reads = 0 if seen is None else window - 1, []
    for j in range(0, q.shape[1], block):
        span = slice(max(j - window + 1, 0), j + block + ahead)
        queries, keys = q[:, j : j + block], k[:, span]
        mask = visible(first + j, queries.shape[1], keys.shape[1], window, first=span.start)
        reads.append(_read(queries, keys, v[:, span], mask))
    return torch.cat(reads, 1)


def _read(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    grouped = q.shape[2] != k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    read = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    return read.transpose(1, 2)


def attend_one_by_one(
    q: Float[Tensor, "n l hq k"],
    k: Float[Tensor, "n m h k"],
    v: Float[Tensor, "n m h v"],
    seen: Int[Tensor, " n"] | None,
    *,
    window: int | None = None,
) -> Float[Tensor, "n l hq v"]:
    """The same, one query after the other, as text is generated: the definition."""
    first = torch.zeros(len(q), dtype=torch.int64, device=q.device) if seen is None else seen
    if q.shape[2] != k.shape[2]:
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    reads, q, k = [v.new_zeros(len(q), 0, *v.shape[2:])], roomy(q), roomy(k)
    for j in range(q.shape[1]):
        mask = visible(first + j, 1, k.shape[1], window)[:, :, 0]
        scores = torch.einsum("nhk,nmhk->nhm", q[:, j], k) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).to(v.dtype)
        reads.append(torch.einsum("nhm,nmhv->nhv", weights, v)[:, None])
    return torch.cat(reads, 1)
