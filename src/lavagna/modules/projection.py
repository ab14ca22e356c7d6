"""Queries, keys and values from a sequence."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.modules.activation import ACTIVATIONS
from lavagna.modules.feature_map import FEATURE_MAPS
from lavagna.modules.heads import Heads
from lavagna.modules.linear import Linear
from lavagna.modules.options import switch
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.state import State

# What may stand behind a projection, by name.
BENT = ACTIVATIONS | FEATURE_MAPS


class QKV(nn.Module):
    """One projection to q, k and v; with `conv_size` each channel is then convolved over that many tokens, then SiLU.

    With `conv_size` 0 it is the projection alone and needs no state. `activations`, one for q and k and one for v,
    stand behind it with or without a convolution. `queries` are the heads of q where they are not those of k.
    """

    def __init__(
        self,
        call: str,
        d_model: int,
        keys: Heads,
        values: Heads,
        *,
        queries: Heads | None = None,
        conv_size: int = 0,
        conv_bias: bool = False,
        activations: tuple[str, str] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(conv_size, int) or conv_size < 0:
            raise ValueError(
                f"{call}: conv_size must be an int >= 0 (0 for no convolution), but came as {conv_size!r}."
            )
        switch(call, "conv_bias", conv_bias)
        self.heads = (queries or keys, keys, values)
        self.sizes = [heads.width for heads in self.heads]
        self.linear = Linear(d_model, sum(self.sizes))
        self.activations = activations or (("silu", "silu") if conv_size else ("identity", "identity"))
        # The convolution's own where it is the same for all channels: one pass fewer.
        bent = "silu" if self.activations == ("silu", "silu") else None
        self.conv = ShortConv(sum(self.sizes), conv_size, bias=conv_bias, activation=bent) if conv_size else None

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
        Float[Tensor, "b t hq k"],
        Float[Tensor, "b t h k"],
        Float[Tensor, "b t hv v"],
        dict[str, Float[Tensor, "n w c"]],
    ]:
        """q, k, v by heads, and the new window."""
        mixed, tensors = self.linear(x), {}
        if self.conv is not None:
            mixed, tensors["window"] = self.conv(mixed, state.window, steps)
        if self.conv is None or self.conv.activation is None:
            spans = [self.sizes[0] + self.sizes[1], self.sizes[2]]
            qk, v = (BENT[name](part) for name, part in zip(self.activations, mixed.split(spans, -1), strict=True))
            q, k = qk.split(self.sizes[:2], -1)
        else:
            q, k, v = mixed.split(self.sizes, -1)
        q, k, v = (x.unflatten(-1, heads) for x, heads in zip((q, k, v), self.heads, strict=True))
        return q, k, v, tensors
