"""RWKV's channel mix: a feed-forward net that sees the step before each step, too."""

from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.modules.feed_forward import FeedForward
from lavagna.modules.linear import Linear, OutLinear, reset_orthogonal
from lavagna.modules.place import Place
from lavagna.modules.precision import roomy, wide
from lavagna.modules.steps import Steps
from lavagna.modules.token_shift import Start, TokenShift


class ChannelMix(FeedForward):
    """`W_v relu(W_k x_k)^2`, where x_k is a blend of this token and the last; up to version 6 behind a receptance.

        y_t = sigmoid(W_r x_r) * W_v relu(W_k x_k)^2          (RWKV-4, 5 and 6)
        y_t = W_v relu(W_k x_k)^2          (RWKV-7)

    Versions 4 and 5 write their blends towards the current token, 6 and 7 towards the last: see `TokenShift`. A new one
    adds nothing to the stream: W_v and W_r are zero. State: `window` (b, 1, d), the last token.
    Peng et al. 2023, arXiv 2305.13048; 2024, arXiv 2404.05892; 2025, arXiv 2503.14456.
    """

    def __init__(self, d_model: int, hidden: int, *, layer_index: int, depth: int, version: int) -> None:
        super().__init__()
        self.version = version
        power = Place(layer_index, depth).falling ** {4: 1, 6: 3, 7: 4}[version]
        readers = ("k",) if version == 7 else ("k", "r")
        toward = "now" if version == 4 else "before"
        self.shift = TokenShift(d_model, dict.fromkeys(readers, Start(power)), toward=toward)
        self.key = Linear(d_model, hidden)
        self.receptance = None if version == 7 else Linear(d_model, d_model)
        self.value = OutLinear(hidden, d_model)

    def reset_parameters(self) -> None:
        """As published: W_v and W_r zero, W_k uniform within +-1/2 d^-1/2 in version 7 and orthogonal before."""
        self.shift.reset_parameters()
        hidden, d_model = self.key.weight.shape
        if self.version == 7:
            nn.init.uniform_(self.key.weight, -0.5 * d_model**-0.5, 0.5 * d_model**-0.5)
        else:
            reset_orthogonal(self.key.weight, gain=max(hidden / d_model, 1) ** 0.5 if self.version == 4 else 1)
        nn.init.zeros_(self.value.weight)
        if self.receptance is not None:
            nn.init.zeros_(self.receptance.weight)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The window before the first token."""
        return {"window": self.shift.initial_window(batch, device, dtype)}

    def forward(
        self, x: Float[Tensor, "b t d"], tensors: dict[str, Float[Tensor, "n 1 d"]], steps: Steps
    ) -> tuple[Float[Tensor, "b t d"], dict[str, Float[Tensor, "n 1 d"]]]:
        """The mixed channels, and the window after them."""
        (xk, *rest), window = self.shift(x, tensors["window"], steps)
        key = self.key(xk)
        factor = None if self.receptance is None else torch.sigmoid(wide(self.receptance(rest[0])))
        return self.value(F.relu(roomy(key)).square(), key.dtype, factor=factor), {"window": window}


rwkv4 = partial(ChannelMix, version=4)
rwkv6 = partial(ChannelMix, version=6)
rwkv7 = partial(ChannelMix, version=7)
