"""Kimi Delta Attention: every key channel of the memory fades at a pace of its own, then the memory is corrected."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import gated_householder
from lavagna.layers.layer import Layer
from lavagna.modules.decay import rate, reset_rates, reset_steps, step_size
from lavagna.modules.heads import heads_of, value_heads_of
from lavagna.modules.linear import Linear, LowRank, WideLinear
from lavagna.modules.norm import GatedRMSNorm, unit
from lavagna.modules.options import below_zero, number, switch, whole
from lavagna.modules.precision import wide, wide_dtype
from lavagna.modules.projection import QKV
from lavagna.modules.steps import Steps
from lavagna.state import State


class KDA(Layer):
    """The gated delta rule with one decay a key channel in place of one a head.

        S_t = S_{t-1} diag(alpha_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T          o_t = S_t q_t / sqrt(head_dim)
        alpha_t = exp(-exp(A_log) softplus(W_2 W_1 x_t + dt_bias))          beta_t = max_beta sigmoid(W_b x_t)

    q, k, v are projections of x, convolved over `conv_size` tokens and passed through SiLU; q and k have length one.
    Each head's read is RMS-normalized and gated by a sigmoid of low rank. Decays and betas are float32 at least. With
    all channels of a head alike it is `gated_delta_net`.

    - heads, head_dim: of the keys; the largest size up to 64 that divides d_model by default.
    - value_heads: a multiple of heads; value head i reads key head i // (value_heads / heads), with decays of its own.
    - expand: width of a value over that of a key, 1.
    - conv_size, conv_bias: 0 for no convolution.
    - max_beta: 1, or 2 to let a step turn what it finds to its negative (Grazzi et al. 2025, arXiv 2411.12537).
    - gate_rank: of decays and output gates, the width of a value head by default; gate_bias: of the output gate.
    - lower_bound: where given, log alpha = lower_bound sigmoid(exp(A_log) (W_2 W_1 x + dt_bias)), below 0 and never
      below that; A_log then starts at 0.

    State: `memory` (b, hv, v, k), `window` (b, conv_size - 1, channels of q, k, v). Initial decay rates exp(A_log) are
    uniform in [1, 16], step sizes softplus(dt_bias) log-uniform in [1e-3, 0.1].
    Kimi Team 2025, arXiv 2510.26692; `KimiDeltaAttention` of flash-linear-attention.
    """

    name = "kda"

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        value_heads: int | None = None,
        expand: float = 1,
        conv_size: int = 4,
        conv_bias: bool = False,
        max_beta: float = 1.0,
        gate_rank: int | None = None,
        gate_bias: bool = True,
        lower_bound: float | None = None,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        number(self.name, "max_beta", max_beta, most=2)
        switch(self.name, "gate_bias", gate_bias)
        if lower_bound is not None:
            below_zero(self.name, "lower_bound", lower_bound)
        self.keys = keys = heads_of(self.name, d_model, heads, head_dim)
        self.values = values = value_heads_of(self.name, keys, value_heads, expand)
        rank = values.size if gate_rank is None else gate_rank
        whole(self.name, "gate_rank", rank)
        self.max_beta, self.lower_bound = max_beta, lower_bound
        conv = {"conv_size": conv_size, "conv_bias": conv_bias}
        self.qkv = QKV(self.name, d_model, keys, values, activations=("silu", "silu"), **conv)
        self.step = LowRank(d_model, rank, values.count * keys.size, bias=False)
        self.beta = WideLinear(d_model, values.count)
        self.gate = LowRank(d_model, rank, values.width, bias=gate_bias, wide=False)
        self.norm = GatedRMSNorm(values.size, eps=norm_eps, activation="sigmoid")
        self.out = Linear(values.width, d_model)
        self.A_log = nn.Parameter(torch.empty(values.count))
        self.dt_bias = nn.Parameter(torch.empty(values.count * keys.size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_rates(self.A_log, low=1, high=16 if self.lower_bound is None else 1)
        reset_steps(self.dt_bias)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, *self.values, self.keys.size, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, **self.qkv.initial_tensors(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v, tensors = self.qkv(x, state, steps)
        q, k = unit(q) * self.keys.size**-0.5, unit(k)
        beta = self.max_beta * self.beta(x).sigmoid().unsqueeze(-1)
        a = gated_householder(self._log_decay(self.step(x)), k, beta)
        o, tensors["memory"] = steps.recur(a, q, k, (beta * v).to(v.dtype), state.memory)
        return self.out(self.norm.channels(o, self.gate, x)), tensors

    def _log_decay(self, step: Float[Tensor, "b t c"]) -> Float[Tensor, "b t hv k"]:
        each = (self.values.count, self.keys.size)
        if self.lower_bound is None:
            return rate(self.A_log) * step_size(step, self.dt_bias).unflatten(-1, each)
        return self.lower_bound * (-rate(self.A_log) * (step + wide(self.dt_bias)).unflatten(-1, each)).sigmoid()
