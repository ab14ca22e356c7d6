"""Queries, keys and values from a sequence."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.modules.heads import Heads
from lavagna.modules.linear import Linear
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.state import State


class QKV(nn.Module):
    """One projection to q, k and v; with `conv_size` each channel is then convolved over that many tokens, then SiLU.

    With `conv_size` 0 it is the projection alone and needs no state.
    """

    def __init__(self, call: str, d_model: int, keys: Heads, values: Heads, *, conv_size: int = 0) -> None:
        super().__init__()
        if not isinstance(conv_size, int) or conv_size < 0:
            raise ValueError(
                f"{call}: conv_size must be an int >= 0 (0 for no convolution), but came as {conv_size!r}."
            )
        self.keys, self.values = keys, values
        self.sizes = [keys.count * keys.size, keys.count * keys.size, values.count * values.size]
        self.linear = Linear(d_model, sum(self.sizes))
        self.conv = ShortConv(sum(self.sizes), conv_size) if conv_size else None

    def reset_parameters(self) -> None:
        """Each part as it sets itself."""
        self.linear.reset_parameters()
        if self.conv is not None:
            self.conv.reset_parameters()

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The empty window, or nothing."""
        return {} if self.conv is None else {"window": self.conv.initial_window(batch, device, dtype)}

    def forward(
        self, x: Float[Tensor, "b t d"], state: State, steps: Steps
    ) -> tuple[
        Float[Tensor, "b t h k"], Float[Tensor, "b t h k"], Float[Tensor, "b t hv v"], dict[str, Float[Tensor, "n w c"]]
    ]:
        """q, k, v by heads, and the new window."""
        mixed, tensors = self.linear(x), {}
        if self.conv is not None:
            mixed, tensors["window"] = self.conv(mixed, state.window, steps)
            mixed = F.silu(mixed)
        q, k, v = mixed.split(self.sizes, -1)
        return q.unflatten(-1, self.keys), k.unflatten(-1, self.keys), v.unflatten(-1, self.values), tensors
