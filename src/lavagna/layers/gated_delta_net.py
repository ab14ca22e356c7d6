"""Gated DeltaNet: the memory fades, then is corrected towards the new value."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import gated_householder
from lavagna.layers.layer import Layer
from lavagna.modules.activation import ACTIVATIONS
from lavagna.modules.decay import rate, reset_rates, reset_steps, step_size
from lavagna.modules.heads import heads_of, value_heads_of
from lavagna.modules.linear import Linear, WideLinear
from lavagna.modules.norm import GatedRMSNorm, unit
from lavagna.modules.options import choice, number, switch
from lavagna.modules.precision import wide_dtype
from lavagna.modules.projection import QKV
from lavagna.modules.steps import Steps
from lavagna.state import State


class GatedDeltaNet(Layer):
    """The delta rule on a memory that first fades by a factor of its own at every step and head.

        S_t = alpha_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T          o_t = S_t q_t / sqrt(head_dim)
        alpha_t = exp(-exp(A_log) softplus(W_a x_t + dt_bias))          beta_t = max_beta sigmoid(W_b x_t)

    q, k, v are projections of x, convolved over `conv_size` tokens and passed through SiLU; q and k have length one.
    Each head's read is RMS-normalized and, with `gate`, gated. Decays and betas are float32 at least.

    - heads, head_dim: of the keys; the largest size up to 64 that divides d_model by default.
    - value_heads: a multiple of heads; value head i reads key head i // (value_heads / heads).
    - expand: width of a value over that of a key, 2.
    - conv_size, conv_bias: 0 for no convolution.
    - gate, activation: whether the output is gated, and by what: "silu", "sigmoid" or another activation.
    - max_beta: 1, or 2 to let a step turn what it finds to its negative (Grazzi et al. 2025, arXiv 2411.12537).

    State: `memory` (b, hv, v, k), `window` (b, conv_size - 1, channels of q, k, v). Initial decay rates exp(A_log) are
    uniform in (0, 16], step sizes softplus(dt_bias) log-uniform in [1e-3, 0.1].
    Yang, Kautz and Hatamizadeh 2025, arXiv 2412.06464.
    """

    name = "gated_delta_net"

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        value_heads: int | None = None,
        expand: float = 2,
        conv_size: int = 4,
        conv_bias: bool = False,
        max_beta: float = 1.0,
        gate: bool = True,
        activation: str = "silu",
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        number(self.name, "max_beta", max_beta, most=2)
        switch(self.name, "gate", gate)
        choice(self.name, "activation", activation, ACTIVATIONS)
        self.keys = heads_of(self.name, d_model, heads, head_dim)
        self.values = values = value_heads_of(self.name, self.keys, value_heads, expand)
        self.max_beta = max_beta
        conv = {"conv_size": conv_size, "conv_bias": conv_bias}
        self.qkv = QKV(self.name, d_model, self.keys, values, activations=("silu", "silu"), **conv)
        self.step = WideLinear(d_model, values.count)
        self.beta = WideLinear(d_model, values.count)
        self.gate = Linear(d_model, values.width) if gate else None
        self.norm = GatedRMSNorm(values.size, eps=norm_eps, activation=activation)
        self.out = Linear(values.width, d_model)
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(values.count)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_rates(self.A_log, low=0.01, high=16)
        reset_steps(self.dt_bias)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, *self.values, self.keys.size, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, **self.qkv.initial_tensors(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v, tensors = self.qkv(x, state, steps)
        q, k = unit(q) * self.keys.size**-0.5, unit(k)
        log_decay = rate(self.A_log) * step_size(self.step(x), self.dt_bias).unsqueeze(-1)
        beta = self.max_beta * self.beta(x).sigmoid().unsqueeze(-1)
        a = gated_householder(log_decay, k, beta)
        o, tensors["memory"] = steps.recur(a, q, k, (beta * v).to(v.dtype), state.memory)
        return self.out(self.norm.channels(o, self.gate, x)), tensors
