"""Gated linear attention: every key channel fades at a pace that the token decides."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import diagonal
from lavagna.layers.layer import Layer
from lavagna.modules.activation import ACTIVATIONS
from lavagna.modules.heads import Heads, expanded, heads_of, key_heads_of
from lavagna.modules.linear import Linear, LowRank, reset_xavier
from lavagna.modules.norm import GatedRMSNorm
from lavagna.modules.options import below_zero, choice, number, switch, whole
from lavagna.modules.precision import roomy, wide_dtype
from lavagna.modules.projection import BENT, QKV
from lavagna.modules.steps import Steps
from lavagna.state import State


class GLA(Layer):
    """Linear attention whose memory fades channel by channel, by gates of low rank.

        S_t = S_{t-1} diag(alpha_t) + v_t k_t^T          o_t = S_t q_t / sqrt(head_dim)
        log alpha_t = logsigmoid(W_2 W_1 x_t + b) / temperature

    Keys are `expand_k` = 1/2 as wide as the model, values `expand` = 1. Each head's read is RMS-normalized and, with
    `gate`, gated. Decays are float32 at least.

    - heads, head_dim: of the keys; the largest size up to 64 that divides their width by default.
    - gate_rank, temperature: 16 and 16; a large temperature lets a channel forget slowly.
    - kv_heads: keys, values and decays, heads by default; query head i reads head i // (heads / kv_heads) of them.
    - lower_bound: of log alpha, None for none.
    - feature_map: of q and k, "identity".
    - gate, activation: whether the output is gated, and by what: "silu" or another activation; affine: whether the norm
      has weights.
    - conv_size: 0 for none as in the paper, else q, k, v are convolved over that many tokens and passed through SiLU.

    State: `memory` (b, h, v, k), and `window` where there is a convolution. Yang et al. 2024, arXiv 2312.06635.
    """

    name = "gla"

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        expand_k: float = 0.5,
        expand: float = 1,
        kv_heads: int | None = None,
        gate_rank: int = 16,
        temperature: float = 16.0,
        lower_bound: float | None = None,
        feature_map: str = "identity",
        gate: bool = True,
        activation: str = "silu",
        affine: bool = True,
        conv_size: int = 0,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        self._check(gate_rank, lower_bound, {"expand_k": expand_k, "expand": expand, "temperature": temperature})
        number(self.name, "norm_eps", norm_eps, zero=True)
        switch(self.name, "gate", gate)
        switch(self.name, "affine", affine)
        choice(self.name, "activation", activation, ACTIVATIONS)
        choice(self.name, "feature_map", feature_map, BENT)
        width = expanded(self.name, "d_model", d_model, expand_k, option="expand_k")
        queries = heads_of(self.name, width, heads, head_dim, what="expand_k * d_model")
        size = expanded(self.name, "head_dim", queries.size, expand / expand_k, option="expand / expand_k")
        self.keys = key_heads_of(self.name, queries, kv_heads)
        self.values, self.group = Heads(queries.count, size), queries.count // self.keys.count
        self.temperature, self.lower_bound, self.feature_map = temperature, lower_bound, feature_map
        written = Heads(self.keys.count, size)
        self.qkv = QKV(self.name, d_model, self.keys, written, queries=queries, conv_size=conv_size)
        self.decay = LowRank(d_model, gate_rank, self.keys.width)
        self.gate = Linear(d_model, self.values.width) if gate else None
        self.norm = GatedRMSNorm(size, eps=norm_eps, affine=affine, activation=activation)
        self.out = Linear(self.values.width, d_model)
        self.reset_parameters()

    def _check(self, gate_rank: int, lower_bound: float | None, numbers: dict[str, float]) -> None:
        whole(self.name, "gate_rank", gate_rank)
        if lower_bound is not None:
            below_zero(self.name, "lower_bound", lower_bound)
        for option, given in numbers.items():
            number(self.name, option, given)

    def reset_parameters(self) -> None:
        """Glorot's rule with gain 2^-2.5 for every matrix, biases zero, as published."""
        super().reset_parameters()
        reset_xavier(self.qkv.linear.weight, self.qkv.sizes, gain=2**-2.5)
        gates = [] if self.gate is None else [self.gate]
        for part in (self.decay.down, self.decay.up, *gates, self.out):
            reset_xavier(part.weight, [part.weight.shape[0]], gain=2**-2.5)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, *self.values, self.keys.size, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, **self.qkv.initial_tensors(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v, tensors = self.qkv(x, state, steps)
        phi = BENT[self.feature_map]
        q, k = phi(q) * self.keys.size**-0.5, phi(k)
        log_decay = F.logsigmoid(self.decay(x)).unflatten(-1, self.keys) / self.temperature
        log_decay = log_decay if self.lower_bound is None else log_decay.clamp_min(self.lower_bound)
        if self.group > 1:
            k, v, log_decay = (z.repeat_interleave(self.group, 2) for z in (k, v, log_decay))
        o, tensors["memory"] = steps.recur(diagonal(log_decay), roomy(q), roomy(k), roomy(v), state.memory)
        return self.out(self.norm.channels(o, self.gate, x).to(v.dtype)), tensors
