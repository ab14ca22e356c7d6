"""A short causal convolution over time, one filter a channel, with its window as state."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.modules.precision import wide
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt


class ShortConv(nn.Module):
    """Each channel's last `width` tokens, weighted: `y_t = sum_i weight_i x_{t - width + 1 + i} + bias`.

    With `activation` "silu" it is the SiLU of that, rounded once where the activations are of half precision.

    What lies before the call is the window, the last `width - 1` real tokens of each sequence (n, width - 1, c), zeros
    at the start. Masked steps are stepped over: they neither enter the window nor stand between two real tokens. No sum
    depends on the length of the call, so any cut of a sequence is exact to the bit.
    """

    def __init__(self, channels: int, width: int = 4, *, bias: bool = False, activation: str | None = None) -> None:
        super().__init__()
        assert activation in (None, "silu")
        self.channels, self.width, self.activation = channels, width, activation
        self.weight = nn.Parameter(torch.empty(channels, width))
        self.bias = nn.Parameter(torch.empty(channels)) if bias else None

    def reset_parameters(self) -> None:
        """Weights uniform within +-width^-1/2, bias zero."""
        bound = self.width**-0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        exempt(self.bias)

    def initial_window(self, batch: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "b w c"]:
        """The window before the first token: zeros."""
        return torch.zeros(batch, self.width - 1, self.channels, device=device, dtype=dtype)

    def forward(
        self, x: Float[Tensor, "b t c"], window: Float[Tensor, "n w c"], steps: Steps
    ) -> tuple[Float[Tensor, "b t c"], Float[Tensor, "n w c"]]:
        """The convolved steps, in the dtype of `x`, and the window after them."""
        fused = self._fused(x, steps)
        if fused is None:
            y, after = steps.by_rows(self._convolved, x, window)
            return y, after
        options = {"silu": self.activation == "silu", "real": steps.mask, "offsets": steps.offsets}
        y, after = fused(x, wide(self.weight), None if self.bias is None else wide(self.bias), window, **options)
        return y, after

    def _fused(self, x: Tensor, steps: Steps) -> Callable[..., tuple[Tensor, ...]] | None:
        return steps.fused("short_conv", x, x, x)

    def _convolved(self, x: Tensor, counts: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        # A state kept in float32 under autocast stays float32: what it holds is never rounded a second time.
        kept = torch.promote_types(window.dtype, x.dtype)
        past = torch.cat([window.to(kept), x.to(kept)], 1)
        last = counts[:, None] + torch.arange(self.width - 1, device=x.device)
        after = past.gather(1, last[:, :, None].expand(-1, -1, self.channels))
        y = self._weighted(past, x.shape[1])
        return (y if self.activation is None else F.silu(y)).to(x.dtype), after

    def _weighted(self, past: Tensor, length: int) -> Tensor:
        weight = wide(self.weight)
        y = past[:, :length] * weight[:, 0]
        for i in range(1, self.width):
            y = y + past[:, i : i + length] * weight[:, i]
        return y if self.bias is None else y + wide(self.bias)

    def extra_repr(self) -> str:
        return f"{self.channels}, width={self.width}, bias={self.bias is not None}" + (
            "" if self.activation is None else f", activation={self.activation}"
        )
