"""Causal softmax attention over what is cached and what is new, row by row without holes."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor


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
    real = place < total[:, None]
    source = torch.where(real, source, 0)[:, :, None, None]
    return both.gather(1, source.expand(-1, -1, *both.shape[2:])) * real[:, :, None, None]


def visible(seen: Int[Tensor, " n"], queries: int, keys: int) -> Bool[Tensor, "n 1 l m"]:
    """Which keys query j of each row may see: those at or before its own place, `seen + j`."""
    own = seen[:, None] + torch.arange(queries, device=seen.device)
    return (torch.arange(keys, device=seen.device) <= own[:, :, None]).unsqueeze(1)


def attend(
    q: Float[Tensor, "n l h k"],
    k: Float[Tensor, "n m h k"],
    v: Float[Tensor, "n m h v"],
    seen: Int[Tensor, " n"] | None,
) -> Float[Tensor, "n l h v"]:
    """`softmax(q k^T / sqrt(k)) v` over the keys that each query may see, all queries at once; O(l m) time.

    `seen` tells how many keys of each row come before its first query; None where there are none in any row.
    """
    mask = None if seen is None else visible(seen, q.shape[1], k.shape[1])
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=seen is None).transpose(1, 2)


def attend_one_by_one(
    q: Float[Tensor, "n l h k"],
    k: Float[Tensor, "n m h k"],
    v: Float[Tensor, "n m h v"],
    seen: Int[Tensor, " n"] | None,
) -> Float[Tensor, "n l h v"]:
    """The same, one query after the other, as text is generated: the definition."""
    first = torch.zeros(len(q), dtype=torch.int64, device=q.device) if seen is None else seen
    reads = [v.new_zeros(len(q), 0, *v.shape[2:])]
    for j in range(q.shape[1]):
        mask = visible(first + j, 1, k.shape[1])[:, :, 0]
        scores = torch.einsum("nhk,nmhk->nhm", q[:, j], k) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        reads.append(torch.einsum("nhm,nmhv->nhv", weights, v)[:, None])
    return torch.cat(reads, 1)
