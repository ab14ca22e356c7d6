"""Where a number needs more digits than the activations have."""

from collections.abc import Callable
from typing import Self

import torch
from jaxtyping import Shaped
from torch import Tensor, nn


def wide(x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """`x` in float32, or float64 where it is float64: for decays, gates and the sums of norms."""
    return x.to(wide_dtype(x.dtype))


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 of float64, float32 of every other floating type: the dtype of memories and decays."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def roomy(x: Shaped[Tensor, "..."]) -> Shaped[Tensor, "..."]:
    """`x`, in float32 where it is float16, which ends at 65504: for sums that a norm brings down again."""
    return wide(x) if x.dtype == torch.float16 else x


class Wide(nn.Module):
    """A module whose own parameters are float32 at least, whatever it is cast to: decays, step sizes, base vectors.

    `.bfloat16()`, `.half()` and `.to(dtype)` narrow its parts alone; float64 widens everything.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # What torch calls for every move and cast. Rounding a decay changes how far a memory reaches.
        def wide_still(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            narrow = moved.is_floating_point() and moved.dtype != wide_dtype(moved.dtype)
            return tensor.to(moved.device, torch.float32) if narrow else moved

        if recurse:
            for part in self.children():
                part._apply(fn)
        return super()._apply(wide_still, recurse=False)
