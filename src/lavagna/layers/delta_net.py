"""DeltaNet: the memory is corrected towards each new value, and nothing fades."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import householder
from lavagna.layers.layer import Layer
from lavagna.modules.heads import heads_of, value_heads_of
from lavagna.modules.linear import Linear, WideLinear
from lavagna.modules.norm import GatedRMSNorm, shares, unit
from lavagna.modules.options import choice, number, switch
from lavagna.modules.precision import wide_dtype
from lavagna.modules.projection import BENT, QKV
from lavagna.modules.steps import Steps
from lavagna.state import State

QK_NORMS = {"l2": unit, "sum": shares}


class DeltaNet(Layer):
    """Linear attention with the delta rule: a step writes the difference of the new value and what its key finds.

        S_t = S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T          o_t = S_t q_t / sqrt(head_dim)
        beta_t = max_beta sigmoid(W_b x_t)

    q, k, v are projections of x, convolved over `conv_size` tokens and passed through SiLU; q and k have length one.
    Each head's read is RMS-normalized and, with `gate`, gated by silu. Betas are float32 at least.

    - heads, head_dim: of the keys; the largest size up to 64 that divides d_model by default.
    - expand: width of a value over that of a key, 1.
    - conv_size, conv_bias: 0 for no convolution.
    - qk_activation: of q and k in the place of "silu": "relu", "elu_plus_one" or "identity".
    - qk_norm: "l2", vectors of length one, or "sum", of absolute values that add up to one.
    - max_beta: 1, or 2 to let a step turn what it finds to its negative (Grazzi et al. 2025, arXiv 2411.12537).

    State: `memory` (b, h, v, k), `window` (b, conv_size - 1, channels of q, k, v).
    Yang et al. 2024, arXiv 2406.06484, after Schlag et al. 2021, arXiv 2102.11174.
    """

    name = "delta_net"

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        expand: float = 1,
        conv_size: int = 4,
        conv_bias: bool = False,
        qk_activation: str = "silu",
        qk_norm: str = "l2",
        max_beta: float = 1.0,
        gate: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        number(self.name, "max_beta", max_beta, most=2)
        switch(self.name, "gate", gate)
        choice(self.name, "qk_activation", qk_activation, BENT)
        choice(self.name, "qk_norm", qk_norm, QK_NORMS)
        self.keys = heads_of(self.name, d_model, heads, head_dim)
        self.values = value_heads_of(self.name, self.keys, None, expand)
        self.max_beta, self.qk_norm = max_beta, qk_norm
        conv = {"conv_size": conv_size, "conv_bias": conv_bias}
        self.qkv = QKV(self.name, d_model, self.keys, self.values, activations=(qk_activation, "silu"), **conv)
        self.beta = WideLinear(d_model, self.keys.count)
        self.gate = Linear(d_model, self.values.width) if gate else None
        self.norm = GatedRMSNorm(self.values.size, eps=norm_eps)
        self.out = Linear(self.values.width, d_model)
        self.reset_parameters()

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, *self.values, self.keys.size, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, **self.qkv.initial_tensors(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v, tensors = self.qkv(x, state, steps)
        normalized = QK_NORMS[self.qk_norm]
        q, k = normalized(q) * self.keys.size**-0.5, normalized(k)
        beta = self.max_beta * self.beta(x).sigmoid().unsqueeze(-1)
        o, tensors["memory"] = steps.recur(householder(k, beta), q, k, (beta * v).to(v.dtype), state.memory)
        return self.out(self.norm.channels(o, self.gate, x)), tensors
