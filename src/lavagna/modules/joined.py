"""Gradients of zero, where there would be none."""

import torch
from jaxtyping import Shaped
from torch import Tensor


def joined(x: Shaped[Tensor, "..."], *others: Shaped[Tensor, "..."] | None) -> Shaped[Tensor, "..."]:
    """`x` itself, from which zero flows back to `others` too: what this call does not depend on, though longer ones do.

    Data-parallel training wants a gradient of every parameter in every call.
    """
    if not torch.is_grad_enabled():
        return x
    # The sum of no numbers: it is zero whatever `other` holds, infinity too.
    for other in others:
        if other is not None:
            x = x + other[..., :0].sum()
    return x
