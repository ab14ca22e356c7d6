"""The token shift: what a layer reads is a blend of this step and the one before it, channel by channel."""

from collections.abc import Mapping
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.modules.linear import WideLinear
from lavagna.modules.precision import Wide, wide, wide_dtype
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt

TOWARDS = ("now", "before")


class Start(NamedTuple):
    """How much of the current step a blend starts with: `(i / width)^power + more` in channel i."""

    power: float
    more: float = 0.0


class TokenShift(Wide):
    """Blends of each step with the one before it, one blend mu a reader; a convolution over two steps.

        x_{t-1} + mu (x_t - x_{t-1})          towards "now": RWKV-4 and 5 (`time_mix_*`)
        x_t + mu (x_{t-1} - x_t)          towards "before": RWKV-6 and 7 (`time_maa_*`, `x_*`)

    Each reader's mu (d) is a parameter of the reader's name. What lies before the call is the window (n, 1, d), the
    last real step of each sequence, zero at the start; masked steps are stepped over. Computed in float32 at least.
    """

    def __init__(self, width: int, starts: Mapping[str, Start], *, toward: str) -> None:
        super().__init__()
        assert toward in TOWARDS
        self.width, self.starts, self.toward = width, dict(starts), toward
        for reader in starts:
            self.register_parameter(reader, nn.Parameter(torch.empty(width)))

    def reset_parameters(self) -> None:
        """Every blend as its start says: little of the current step in the first channels, all of it in the last."""
        for reader, (power, more) in self.starts.items():
            mu = self.get_parameter(reader)
            # The meta device has no values to set, and torch imports its compiler to find that out.
            if not mu.is_meta:
                now = (torch.arange(self.width, device=mu.device) / self.width) ** power + more
                mu.detach().copy_(now if self.toward == "now" else 1 - now)
            exempt(mu)

    def initial_window(self, batch: int, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "b 1 d"]:
        """The window before the first step: zeros."""
        return torch.zeros(batch, 1, self.width, device=device, dtype=dtype)

    def forward(
        self, x: Float[Tensor, "b t d"], window: Float[Tensor, "n 1 d"], steps: Steps
    ) -> tuple[list[Float[Tensor, "b t d"]], Float[Tensor, "n 1 d"]]:
        """What each reader reads, in the order of the readers and the dtype of `x`, and the window after it."""
        now, before, after = self._neighbors(x, window, steps)
        start, end = (before, now) if self.toward == "now" else (now, before)
        return [torch.lerp(start, end, getattr(self, reader)).to(x.dtype) for reader in self.starts], after

    def _neighbors(self, x: Tensor, window: Tensor, steps: Steps) -> tuple[Tensor, Tensor, Tensor]:
        before, after = steps.before(x, window.squeeze(1))
        return wide(x), before.to(wide_dtype(x.dtype)), after.unsqueeze(1)

    def extra_repr(self) -> str:
        return f"{self.width}, {', '.join(self.starts)}, toward={self.toward!r}"


class DynamicShift(TokenShift):
    """Blends that the token decides, by maps of low rank (RWKV-6):

        x_t + (mu + up_reader tanh(W_down z_t)) (x_{t-1} - x_t)          z_t = x_t + mu_x (x_{t-1} - x_t)

    `down` (readers * rank, d), and `up` (readers, d, rank) in the order of the readers; `x` is the blend of z.
    Peng et al. 2024, arXiv 2404.05892.
    """

    def __init__(self, width: int, starts: Mapping[str, Start], *, rank: int) -> None:
        super().__init__(width, starts, toward="before")
        self.readers = [reader for reader in starts if reader != "x"]
        self.adapter = _Adapters(width, rank, len(self.readers))

    def reset_parameters(self) -> None:
        """The blends as their starts say; the maps add nothing yet."""
        super().reset_parameters()
        self.adapter.reset_parameters()

    def forward(
        self, x: Float[Tensor, "b t d"], window: Float[Tensor, "n 1 d"], steps: Steps
    ) -> tuple[list[Float[Tensor, "b t d"]], Float[Tensor, "n 1 d"]]:
        """What each reader reads, in the order of the readers and the dtype of `x`, and the window after it."""
        now, before, after = self._neighbors(x, window, steps)
        more = self.adapter(torch.lerp(now, before, cast(Tensor, self.x)).to(x.dtype))
        mus = [getattr(self, reader) + add for reader, add in zip(self.readers, more, strict=True)]
        return [torch.lerp(now, before, mu).to(x.dtype) for mu in mus], after


class _Adapters(nn.Module):
    """`count` maps of low rank with one matrix down, `up_i tanh(down_i x)`, float32 at least."""

    def __init__(self, width: int, rank: int, count: int) -> None:
        super().__init__()
        self.down = WideLinear(width, count * rank)
        self.up = nn.Parameter(torch.empty(count, width, rank))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.down.weight)
        nn.init.uniform_(self.up, -0.01, 0.01)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        middle = torch.tanh(self.down(x)).unflatten(-1, (len(self.up), -1))
        return torch.einsum("btir,idr->ibtd", middle, wide(self.up)).unbind(0)
