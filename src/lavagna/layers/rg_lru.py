"""The real-gated linear recurrent unit: a channel fades at a pace that the token sets, and writes what that frees."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lavagna.algebra.transition import diagonal
from lavagna.layers.layer import Layer
from lavagna.modules.heads import expanded, heads_of
from lavagna.modules.linear import Linear, OutLinear, WideHeadLinear
from lavagna.modules.options import whole
from lavagna.modules.precision import roomy, wide, wide_dtype
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State

# The paper's c: how strong the recurrence gate is.
STRENGTH = 8.0


class RGLRU(Layer):
    """The recurrent block of Griffin: a gated branch, and beside it a short convolution and a diagonal recurrence.

        h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t x_t          y_t = W_out (h_t * gelu(W_y u_t + b_y)) + b_out
        log a_t = -8 softplus(Lambda) sigmoid(W_a x_t + b_a)          i_t = sigmoid(W_i x_t + b_i)

    x is a projection of the input u, convolved over `conv_size` tokens. The first token of a sequence is written whole:
    its factor is 1. W_a and W_i are block-diagonal, one block a head. Gates, decays and factors are float32 at least; a
    decay of exactly 1 writes nothing and has the gradient 0, which is its limit. GELU is its approximation by a tanh.
    In the letters of the other layers a channel is a head of one value and one key, both key and query 1.

    - expand: channels over d_model, 1.
    - heads, head_dim: the blocks of W_a and W_i, 16 where they divide the channels, else as many as do.

    State: `memory` (b, channels, 1, 1), `window` (b, conv_size - 1, channels). At the start exp(-8 softplus(Lambda)),
    the decay of an open gate, is uniform in [0.9, 0.999], and biases are zero.
    De et al. 2024, arXiv 2402.19427, whose Lambda has the other sign.
    """

    name = "rg_lru"
    block_mlp = "geglu_tanh"
    block_mlp_factor = 3

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        expand: float = 1,
        conv_size: int = 4,
    ) -> None:
        super().__init__(d_model)
        whole(self.name, "conv_size", conv_size)
        channels = expanded(self.name, "d_model", d_model, expand)
        if heads is None and head_dim is None:
            heads = math.gcd(channels, 16)
        self.heads = heads_of(self.name, channels, heads, head_dim, what="expand * d_model")
        if self.heads.width != channels:
            raise ValueError(
                f"{self.name}: heads={self.heads.count} of head_dim={self.heads.size} are not expand * d_model = "
                f"{channels} channels. Give one of the two, or expand={self.heads.width / d_model:g}."
            )
        self.gate = Linear(d_model, channels, bias=True)
        self.x = Linear(d_model, channels, bias=True)
        self.conv = ShortConv(channels, conv_size, bias=True)
        self.input_gate, self.decay_gate = (
            WideHeadLinear(self.heads.count, self.heads.size, self.heads.size) for _ in range(2)
        )
        self.out = OutLinear(channels, d_model, bias=True)
        self.Lambda = nn.Parameter(torch.empty(channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if not self.Lambda.is_meta:
            with torch.no_grad():
                # The inverse of u = exp(-8 softplus(Lambda)).
                self.Lambda.uniform_(0.9, 0.999).log_().div_(-STRENGTH).expm1_().log_()
        exempt(self.Lambda)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, len(self.Lambda), 1, 1, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, "window": self.conv.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        gate = F.gelu(self.gate(x), approximate="tanh")
        x, window = self.conv(self.x(x), state.window, steps)
        by_heads = x.unflatten(-1, self.heads)
        r, i = (linear(by_heads).flatten(2).sigmoid() for linear in (self.decay_gate, self.input_gate))
        log_decay = -STRENGTH * F.softplus(wide(self.Lambda)) * r
        write = (_room(log_decay, steps.positions(state.tokens_seen) == 0) * i * x).to(roomy(x).dtype)
        one = write.new_ones(*x.shape[:2], 1, 1)
        h, memory = steps.recur(diagonal(log_decay.unsqueeze(-1)), one, one, write.unsqueeze(-1), state.memory)
        return self.out(h.squeeze(-1) * gate, gate.dtype), {"memory": memory, "window": window}


def _room(log_decay: Float[Tensor, "b t c"], first: Bool[Tensor, "b t"]) -> Float[Tensor, "b t c"]:
    """`sqrt(1 - decay^2)`, which keeps the variance of a channel, or 1 at a first token.

    The root has no finite slope at 0, where all that the decay comes from has none: the product is taken as 0.
    """
    left = -torch.expm1(2 * log_decay)
    some = left > 0
    room = torch.where(some, left, 1).sqrt().masked_fill(~some, 0)
    return room.masked_fill(first.unsqueeze(-1), 1)
