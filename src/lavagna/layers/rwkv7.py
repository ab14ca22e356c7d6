"""RWKV-7: the memory removes along a key of its own, at a rate for each channel, and fades channel by channel."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import dplr
from lavagna.layers.layer import Layer
from lavagna.modules.bonus import with_bonus
from lavagna.modules.heads import heads_of
from lavagna.modules.linear import Linear, LowRank, OutLinear, reset_orthogonal
from lavagna.modules.norm import HeadNorm
from lavagna.modules.options import number, switch, whole
from lavagna.modules.place import place_of
from lavagna.modules.precision import roomy, wide, wide_dtype
from lavagna.modules.spread import line, reset_output
from lavagna.modules.steps import Steps
from lavagna.modules.token_shift import Start, TokenShift
from lavagna.modules.weight_decay import exempt
from lavagna.state import State

# No channel loses more than this of its logarithm in a step, so none keeps less than 0.545 of what it held.
FASTEST = math.exp(-0.5)


class RWKV7(Layer):
    """The delta rule with a key of its own to remove along, and a rate and a decay for each of its channels.

        S_t = S_{t-1} (diag(w_t) - kappa_t (a_t * kappa_t)^T) + v_t k_t^T          o_t = S_t r_t
        w_t = exp(-e^(-1/2) sigmoid(w0 + W_2 tanh(W_1 x)))          a_t = sigmoid(a0 + A_2 A_1 x)
        kappa_t = W_k x * k_k, of length one in each head          k_t = W_k x * (1 + (a_t - 1) * k_a)
        v_t = W_v x + (v_first - W_v x) * sigmoid(v0 + V_2 V_1 x)
        y_t = W_out (gate_t * (norm(o_t) + (r_t . (r_k * k_t)) v_t))          gate_t = G_2 sigmoid(G_1 x)

    r is the query. Each x is a blend of its own of this token and the last (`modules.token_shift`). What is removed is
    read from the memory before it fades. The norm is one a head. Decays and rates are float32 at least.

    - heads, head_dim: the largest size up to 64 that divides d_model by default.
    - decay_rank, rate_rank, value_rank, gate_rank: of the maps of low rank; 2.5, 2.5, 1.7 and 5 times sqrt(d_model) in
      multiples of 32 by default.
    - value_residual: mix in v_first, the value of the first rwkv7 layer of the model. A model's block asks for it in
      every such layer but the first, which has no such parameters.
    - out_bias: whether W_out adds a bias to the residual stream.
    - norm_eps: 64e-5, which is 1e-5 for a read divided by 8, as older versions had it.
    - layer_index, depth: the layer's place in its model, from which the initial values follow.

    State: `memory` (b, h, v, k), `window` (b, 1, d), the last token. Peng et al. 2025, arXiv 2503.14456;
    `RWKV_Tmix_x070` of RWKV-LM.
    """

    name = "rwkv7"
    block_norm = "layer"
    block_mlp = "rwkv7"
    block_mlp_factor = 4
    embedding_norm = True
    hands_on = True

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        decay_rank: int | None = None,
        rate_rank: int | None = None,
        value_rank: int | None = None,
        gate_rank: int | None = None,
        value_residual: bool = False,
        out_bias: bool = False,
        norm_eps: float = 64e-5,
        layer_index: int = 0,
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        switch(self.name, "value_residual", value_residual)
        switch(self.name, "out_bias", out_bias)
        self.heads = heads_of(self.name, d_model, heads, head_dim)
        self.place = place_of(self.name, layer_index, depth)
        width = self.heads.width
        decay, rate, value, gate = (
            self._rank(option, given, factor)
            for option, given, factor in (
                ("decay_rank", decay_rank, 2.5),
                ("rate_rank", rate_rank, 2.5),
                ("value_rank", value_rank, 1.7),
                ("gate_rank", gate_rank, 5),
            )
        )
        powers = {"r": 0.2, "w": 0.9, "k": 0.7, "v": 0.7, "a": 0.9, "g": 0.2}
        starts = {reader: Start(power * self.place.falling) for reader, power in powers.items()}
        self.shift = TokenShift(d_model, starts, toward="before")
        self.receptance, self.key, self.value = (Linear(d_model, width) for _ in range(3))
        self.decay = LowRank(d_model, decay, width, activation=torch.tanh, bias=False)
        self.rate = LowRank(d_model, rate, width, bias=False)
        self.residual = LowRank(d_model, value, width, bias=False) if value_residual else None
        self.gate = LowRank(d_model, gate, width, activation=torch.sigmoid, bias=False, wide=False)
        self.norm = HeadNorm(*self.heads, eps=norm_eps)
        self.out = OutLinear(width, d_model, bias=out_bias)
        self.w0, self.a0, self.k_k, self.k_a = (nn.Parameter(torch.empty(width)) for _ in range(4))
        self.v0 = nn.Parameter(torch.empty(width)) if value_residual else None
        self.r_k = nn.Parameter(torch.empty(self.heads))
        self.reset_parameters()

    def _rank(self, option: str, given: int | None, factor: float) -> int:
        if given is None:
            return max(32, round(factor * self.d_model**0.5 / 32) * 32)
        whole(self.name, option, given)
        return given

    def reset_parameters(self) -> None:
        """As published: what a new layer adds to the stream is zero, decays and rates are spread over the channels."""
        super().reset_parameters()
        for part, bound in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            nn.init.uniform_(part.weight, -bound * self.d_model**-0.5, bound * self.d_model**-0.5)
        reset_output(self.norm, self.out, self.place)
        for adapter in (self.decay, self.rate, self.residual, self.gate):
            if adapter is not None:
                nn.init.zeros_(adapter.down.weight)
                d_out, rank = adapter.up.weight.shape
                reset_orthogonal(adapter.up.weight, gain=0.1 * max(rank / d_out, 1) ** 0.5)
        self._reset_vectors()

    def _reset_vectors(self) -> None:
        nn.init.constant_(self.k_a, 1.02)
        nn.init.constant_(self.r_k, -0.04)
        exempt(self.w0, self.a0, self.v0, self.k_k, self.k_a, self.r_k)
        # The meta device has no values to set, and torch imports its compiler to find that out.
        if not self.w0.is_meta:
            self._spread_vectors(self.w0.device)

    @torch.no_grad()
    def _spread_vectors(self, device: torch.device) -> None:
        count, size = self.heads
        rises = line(count * size, device=device)
        # From -1 to 1 within each head, flat in the middle.
        wave = (2 * line(size, device=device) - 1).repeat(count)
        wave = wave * wave.abs()
        self.w0.copy_(6 * rises ** (1 + self.place.rising**0.3) - 5.5 + 2.5 * wave)
        self.a0.copy_(0.3 * wave + 0.4 * (rises - 0.5) - 0.19)
        self.k_k.copy_(0.71 - 0.1 * (rises - 0.5))
        if self.v0 is not None:
            self.v0.copy_(0.73 - 0.4 * (rises - 0.5))

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, *self.heads, self.heads.size, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, "window": self.shift.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        (xr, xw, xk, xv, xa, xg), window = self.shift(x, state.window, steps)
        r, k = self.receptance(xr).unflatten(-1, self.heads), wide(self.key(xk))
        v = self._value(xv, steps).unflatten(-1, self.heads)
        a = torch.sigmoid(self.a0 + self.rate(xa))
        log_decay = (-FASTEST * torch.sigmoid(self.w0 + self.decay(xw))).unflatten(-1, self.heads)
        removed = F.normalize((k * self.k_k).unflatten(-1, self.heads), dim=-1, eps=1e-12)
        # 1 + (a - 1) k_a in one pass.
        share = wide(self.k_a)
        k = (k * torch.addcmul(1 - share, a, share)).unflatten(-1, self.heads)
        transition = dplr(log_decay, -removed, a.unflatten(-1, self.heads) * removed)
        o, memory = steps.recur(transition, roomy(r), k.to(roomy(v).dtype), roomy(v), state.memory)
        y = with_bonus(self.norm(o), r, k, v, self.r_k).flatten(2) * self.gate(xg)
        return self.out(y, v.dtype), {"memory": memory, "window": window}

    def _value(self, x: Tensor, steps: Steps) -> Tensor:
        """The value of each step; the first layer's is handed on, the others mix it in."""
        v = self.value(x)
        if self.residual is None or self.v0 is None:
            steps.handed = v
            return v
        if steps.handed is None:
            raise ValueError(
                f"{self.name}: value_residual=True mixes in the first value of the model, but none was handed on. "
                "Build a layer that stands alone, or is a model's first, with value_residual=False."
            )
        return torch.lerp(wide(v), wide(steps.handed), torch.sigmoid(self.v0 + self.residual(x))).to(v.dtype)
