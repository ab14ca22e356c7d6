"""Longhorn: every channel's memory is the closed-form answer to one question of online learning a token."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import diagonal, householder
from lavagna.layers.layer import Layer
from lavagna.modules.heads import expanded
from lavagna.modules.linear import Linear, OutLinear, WideLinear, shrink
from lavagna.modules.options import choice, whole
from lavagna.modules.precision import roomy, wide, wide_dtype
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State

TRANSITIONS = ("exact", "diagonal")


class Longhorn(Layer):
    """A memory a channel, s (d_state), that stays near what it was and answers the key with the channel's value.

        s_t = argmin_s |s - s_{t-1}|^2 + beta_t (s . k_t - x_t)^2
            = (I - D_t k_t k_t^T) s_{t-1} + D_t x_t k_t          D_t = beta_t / (1 + beta_t |k_t|^2)
        y_t = s_t . q_t + D x_t          beta_t = sigmoid(W_b c_t + b)

    The step size follows from the question, so keys need no norm: D |k|^2 < 1 whatever they are, and nothing grows. x
    is a projection of the input, convolved over `conv_size` tokens and passed through SiLU; c (rank), k and q (d_state)
    are projections of x, shared by all channels. The result is gated: `out(y * silu(z))`. In the letters of the other
    layers a channel is a head of one value, with one key head for all.

    - transition: "exact", or "diagonal", the published code's approximation of it, diag(1 - D_t k_t^2).
    - expand: channels over d_model, 2; d_state: numbers a channel remembers, 16.
    - rank: width of c, d_model / 16 rounded up by default; betas are float32 at least.
    - depth: how many layers the model has; the output weights start smaller by its square root.

    State: `memory` (b, channels, 1, d_state), `window` (b, conv_size - 1, channels). D is 1 at first.
    Liu et al. 2024, arXiv 2407.14207.
    """

    name = "longhorn"
    block_mlp = None

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 16,
        expand: float = 2,
        conv_size: int = 4,
        rank: int | None = None,
        transition: str = "exact",
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        channels = expanded(self.name, "d_model", d_model, expand)
        rank = -(-d_model // 16) if rank is None else rank
        sizes = {"d_state": d_state, "conv_size": conv_size, "rank": rank, "depth": 1 if depth is None else depth}
        for option, given in sizes.items():
            whole(self.name, option, given)
        choice(self.name, "transition", transition, TRANSITIONS)
        self.depth, self.transition, self.sizes = depth, transition, [rank, d_state, d_state]
        self.x = Linear(d_model, channels)
        self.gate = Linear(d_model, channels)
        self.conv = ShortConv(channels, conv_size, bias=True, activation="silu")
        self.ckq = Linear(channels, sum(self.sizes))
        self.beta = WideLinear(rank, channels, bias=True)
        self.out = OutLinear(channels, d_model)
        self.D = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        shrink(self.out.weight, self.depth or 1)
        nn.init.ones_(self.D)
        exempt(self.D)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, len(self.D), 1, self.sizes[1], device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, "window": self.conv.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        gate = self.gate(x)
        x, window = self.conv(self.x(x), state.window, steps)
        c, k, q = self.ckq(x).split(self.sizes, -1)
        k, q = k.unsqueeze(2), q.unsqueeze(2)
        asked = self.beta(c).unsqueeze(-1)
        length = wide(k).square().sum(-1, keepdim=True)
        # beta / (1 + beta |k|^2) with all but a sum, a sigmoid and a product taken once for all channels.
        dose = (asked + length.log1p()).sigmoid() * (1 + length).reciprocal()
        exact = self.transition == "exact"
        a = householder(k, dose) if exact else diagonal(_faded(asked.sigmoid(), wide(k).square(), length))
        q, k = roomy(q), roomy(k)
        y, memory = steps.recur(a, q, k, (dose * x.unsqueeze(-1)).to(k.dtype), state.memory)
        y = y.squeeze(-1) + (wide(self.D) * x).to(y.dtype)
        return self.out(y * F.silu(gate), gate.dtype), {"memory": memory, "window": window}


def _faded(beta: Tensor, square: Tensor, length: Tensor) -> Tensor:
    """log(1 - D k_i^2) per channel of the key, as a quotient: 1 - D k_i^2 itself would round to 0 for long keys."""
    return torch.log1p(beta * (length - square).clamp_min(0)) - torch.log1p(beta * length)
