"""DeltaProduct: a token corrects the memory several times, along keys of its own, before it is read."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import Transition, gated_householder, householder
from lavagna.layers.layer import Layer
from lavagna.modules.decay import rate, reset_rates, reset_steps, step_size
from lavagna.modules.heads import Heads, heads_of, value_heads_of
from lavagna.modules.linear import Linear, WideLinear
from lavagna.modules.norm import GatedRMSNorm, unit
from lavagna.modules.options import number, switch, whole
from lavagna.modules.precision import wide_dtype
from lavagna.modules.projection import QKV
from lavagna.modules.steps import Steps
from lavagna.state import State


class DeltaProduct(Layer):
    """The delta rule taken `factors` times a token, so that a step is a product of as many Householder factors.

        S_t,j = S_t,j-1 (I - beta_t,j k_t,j k_t,j^T) + beta_t,j v_t,j k_t,j^T          j = 1 .. factors
        S_t,0 = alpha_t S_{t-1}          S_t = S_t,factors          o_t = S_t q_t / sqrt(head_dim)

    A token has one query and `factors` keys, values and betas; only the memory after the last factor is read. With
    betas up to 2 two factors can rotate what is stored, and n of them permute n + 1 things, which one alone can't.
    q, k, v are projections of x, convolved over `conv_size` tokens and passed through SiLU; q and k have length one.
    Each head's read is RMS-normalized and, with `gate`, gated by silu. With one factor it is `delta_net`; with
    `fading`, `gated_delta_net`.

    - factors: Householder factors a token, 2.
    - fading: whether the memory first fades by alpha_t = exp(-exp(A_log) softplus(W_a x_t + dt_bias)), a number for
      each value head; without, alpha is 1.
    - heads, head_dim: of the keys; the largest size up to 64 that divides d_model by default.
    - value_heads: a multiple of heads; value head i reads key head i // (value_heads / heads).
    - expand: width of a value over that of a key, 1.
    - conv_size, conv_bias: 0 for no convolution.
    - max_beta: 2, so that a factor may turn what it finds to its negative, or 1.

    State: `memory` (b, hv, v, k), `window` (b, conv_size - 1, channels of q, k, v).
    Siems et al. 2025, arXiv 2502.10297; `GatedDeltaProduct` of flash-linear-attention.
    """

    name = "delta_product"

    def __init__(
        self,
        d_model: int,
        *,
        factors: int = 2,
        fading: bool = False,
        heads: int | None = None,
        head_dim: int | None = None,
        value_heads: int | None = None,
        expand: float = 1,
        conv_size: int = 4,
        conv_bias: bool = False,
        max_beta: float = 2.0,
        gate: bool = True,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        number(self.name, "max_beta", max_beta, most=2)
        whole(self.name, "factors", factors)
        switch(self.name, "fading", fading)
        switch(self.name, "gate", gate)
        self.keys = keys = heads_of(self.name, d_model, heads, head_dim)
        self.values = values = value_heads_of(self.name, keys, value_heads, expand)
        all_keys, all_values = (Heads(factors * one.count, one.size) for one in (keys, values))
        self.max_beta, self.factors = max_beta, factors
        conv = {"conv_size": conv_size, "conv_bias": conv_bias}
        self.qkv = QKV(self.name, d_model, all_keys, all_values, queries=keys, activations=("silu", "silu"), **conv)
        self.beta = WideLinear(d_model, all_values.count)
        self.gate = Linear(d_model, values.width) if gate else None
        self.norm = GatedRMSNorm(values.size, eps=norm_eps)
        self.out = Linear(values.width, d_model)
        self.step = WideLinear(d_model, values.count) if fading else None
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(values.count)) if fading else None for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.A_log is not None and self.dt_bias is not None:
            reset_rates(self.A_log, low=0.01, high=16)
            reset_steps(self.dt_bias)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, *self.values, self.keys.size, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, **self.qkv.initial_tensors(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        n = self.factors
        q, k, v, tensors = self.qkv(x, state, steps)
        beta = self.max_beta * self.beta(x).sigmoid().unsqueeze(-1)
        # Factor by factor on the time axis: (b, n t, h, .), token after token.
        k, v, beta = (z.unflatten(2, (n, -1)).flatten(1, 2) for z in (unit(k), v, beta))
        q = (unit(q) * self.keys.size**-0.5).repeat_interleave(n, 1)
        a = self._transition(x, k, beta)
        o, tensors["memory"] = steps.recur(a, q, k, (beta * v).to(v.dtype), state.memory, parts=n)
        return self.out(self.norm.channels(o[:, n - 1 :: n], self.gate, x)), tensors

    def _transition(self, x: Tensor, k: Tensor, beta: Tensor) -> Transition:
        if self.A_log is None or self.dt_bias is None or self.step is None:
            return householder(k, beta)
        log_decay = rate(self.A_log) * step_size(self.step(x), self.dt_bias).unsqueeze(-1)
        # A token fades once, before its first factor.
        log_decay = F.pad(log_decay.unsqueeze(2), (0, 0, 0, 0, 0, self.factors - 1)).flatten(1, 2)
        return gated_householder(log_decay, k, beta)
