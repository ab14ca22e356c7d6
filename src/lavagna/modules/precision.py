"""Where a number needs more digits than the activations have."""

import torch
from jaxtyping import Shaped
from torch import Tensor


def wide(x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """`x` in float32, or float64 where it is float64: for decays, gates and the sums of norms."""
    return x.to(wide_dtype(x.dtype))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 of float64, float32 of every other floating type: the dtype of memories and decays."""
    return torch.float64 if dtype == torch.float64 else torch.float32
