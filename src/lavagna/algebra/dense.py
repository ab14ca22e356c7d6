"""The oracle: the definition itself, with every transition as a dense matrix and one Python step a token.

Nothing here shares code with the forms. It is slow, it inspects nothing, and it is what every other result is held to.
"""

import torch
from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.transition import Transition


def matrix(a: Transition, keys: int, b: int, t: int, h: int) -> Shaped[Tensor, "..."]:
    """The transition of one batch row, step and head, (k, k), straight from its definition."""

    def at(part: Tensor) -> Tensor:
        row = part[b if part.shape[0] > 1 else 0, t if part.shape[1] > 1 else 0]
        return row[h if row.shape[0] > 1 else 0]

    like = next(iter(a.parts.values()), torch.zeros(()))
    eye = torch.eye(keys, dtype=torch.float64, device=like.device)
    out = eye
    if a.log_decay is not None:
        log_decay = at(a.log_decay) * (1 if a.step is None else at(a.step))
        out = torch.diag(torch.exp(log_decay).expand(keys))
    if a.right is not None and a.beta is not None:
        out = out.to(a.right.dtype) if a.right.is_complex() else out
        return out @ (eye - at(a.beta) * torch.outer(at(a.right), at(a.right)))
    if a.left is not None and a.right is not None:
        return out + torch.outer(at(a.left), at(a.right))
    return out


def recur(
    a: Transition,
    q: Shaped[Tensor, "b t h k"],
    k: Shaped[Tensor, "b t h k"],
    v: Shaped[Tensor, "b t hv v"],
    state: Shaped[Tensor, "b hv v k"] | None = None,
    *,
    read: str = "after",
    mask: Shaped[Tensor, "b t"] | None = None,
) -> tuple[Shaped[Tensor, "b t hv v"], Shaped[Tensor, "b hv v k"]]:
    """`S_t = S_{t-1} A_t + v_t k_t^T`, `o_t = S_t q_t`, one step at a time in float64 (complex128 where complex).

    Takes what `lavagna.recur` takes and differentiates like any torch code. Cost O(v k^2) a step and head.
    """
    tensors = [q, k, v, *a.parts.values(), *([] if state is None else [state])]
    dtype = torch.complex128 if any(x.is_complex() for x in tensors) else torch.float64
    a, q, k, v = a.map(lambda x: x.to(dtype)), q.to(dtype), k.to(dtype), v.to(dtype)
    groups = v.shape[2] // k.shape[2]
    spread = {name: part.shape[2] not in (1, v.shape[2]) for name, part in a.parts.items()}
    a = Transition(**{n: p.repeat_interleave(groups, 2) if spread[n] else p for n, p in a.parts.items()})
    batch, steps, heads, width = v.shape
    if state is None:
        state = torch.zeros(batch, heads, width, k.shape[3], dtype=dtype, device=v.device)
    rows, lasts = [], []
    for b in range(batch):
        outs, finals = [], []
        for h in range(heads):
            s, reads, g = state[b, h].to(dtype), [], h // groups
            for t in range(steps):
                if mask is not None and not mask[b, t]:
                    reads.append(torch.zeros(width, dtype=dtype, device=v.device))
                    continue
                before = s
                s = s @ matrix(a, k.shape[3], b, t, h).to(s) + torch.outer(v[b, t, h], k[b, t, g])
                reads.append((before if read == "before" else s) @ q[b, t, g])
            outs.append(torch.stack(reads) if reads else v.new_zeros(0, width))
            finals.append(s)
        rows.append(torch.stack(outs, 1))
        lasts.append(torch.stack(finals))
    if not batch:
        return v.clone(), state.to(dtype).clone()
    return torch.stack(rows), torch.stack(lasts)
