"""The recurrent form: a left fold, one step after the other."""

import torch
from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.decay import Survival, fade, survival
from lavagna.algebra.transition import Transition


def recurrent(
    a: Transition,
    q: Shaped[Tensor, "b t h k"],
    k: Shaped[Tensor, "b t h k"],
    v: Shaped[Tensor, "b t h v"],
    state: Shaped[Tensor, "b h v k"],
    *,
    read: str,
    chunk: int,
) -> tuple[Shaped[Tensor, "b t h v"], Shaped[Tensor, "b h v k"]]:
    """`(...((S_0 A_1 + W_1) A_2 + W_2)...)`: the definition, and the way to generate.

    Cost O(t v k) and, without gradients, memory O(v k): nothing is kept of a step but its output. `chunk` is not used.
    """
    log_decay, erase, right, decayed = a.factors()
    decay = survival(log_decay)
    if decay is not None and log_decay is not None and erase is not None and decayed:
        erase = erase * log_decay.exp()
    outputs = []
    for t in range(q.shape[1]):
        before, write = state, v[:, t, :, :, None] * k[:, t, :, None, :]
        if erase is not None and right is not None:
            write = write - (state @ erase[:, t, :, :, None]) * right[:, t, :, None, :]
        state = fade(state, None if decay is None else Survival(*(x[:, t, :, None, :] for x in decay)), write)
        outputs.append(((before if read == "before" else state) @ q[:, t, :, :, None]).squeeze(-1))
    return torch.stack(outputs, 1), state
