"""Mamba: a state-space model that chooses, token by token, how long its steps last and what it writes and reads."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.layers.layer import Layer
from lavagna.modules.decay import reset_steps, step_size
from lavagna.modules.heads import expanded
from lavagna.modules.linear import Linear, OutLinear, WideLinear, shrink
from lavagna.modules.norm import RMSNorm
from lavagna.modules.options import number, switch, whole
from lavagna.modules.precision import roomy, wide, wide_dtype
from lavagna.modules.selective_scan import selective_scan
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State


class Mamba(Layer):
    """A selective state space: every channel x a diagonal system of its own, run in steps that the token decides.

        h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t          y_t = C_t . h_t + D x_t
        A = -exp(A_log)          dt_t = softplus(W_dt s_t + dt_bias)

    x is a projection of the input, convolved over `conv_size` tokens and passed through SiLU; s (dt_rank), B and C
    (d_state) are projections of x, shared by all channels. The result is gated: `out(y * silu(z))`. The decay is the
    zero-order hold of A, the write its first order, dt B. In the letters of the other layers a channel is a head of one
    value, B the key and C the query, one key head for all.

    - expand: channels over d_model, 2; d_state: numbers a channel remembers, 16.
    - dt_rank: width of s, d_model / 16 rounded up by default; decays and step sizes are float32 at least.
    - bias, conv_bias: whether the projections in and out, and the convolution, have biases: no, and yes.
    - norm: divide s, B and C by the root of their mean square plus `norm_eps` (Falcon Mamba).
    - depth: how many layers the model has; the output weights start smaller by its square root.

    State: `memory` (b, channels, 1, d_state), `window` (b, conv_size - 1, channels). Initial A is -1, -2, ..., -d_state
    in every channel, D is 1, step sizes softplus(dt_bias) log-uniform in [1e-3, 0.1].
    Gu and Dao 2023, arXiv 2312.00752; `Mamba` of mamba_ssm. Zuo et al. 2024, arXiv 2410.05355 (`norm`).
    """

    name = "mamba"
    block_mlp = None

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 16,
        expand: float = 2,
        conv_size: int = 4,
        dt_rank: int | None = None,
        bias: bool = False,
        conv_bias: bool = True,
        norm: bool = False,
        norm_eps: float = 1e-6,
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        for option, given in {"bias": bias, "conv_bias": conv_bias, "norm": norm}.items():
            switch(self.name, option, given)
        number(self.name, "norm_eps", norm_eps, zero=True)
        channels = expanded(self.name, "d_model", d_model, expand)
        rank = -(-d_model // 16) if dt_rank is None else dt_rank
        sizes = {"d_state": d_state, "conv_size": conv_size, "dt_rank": rank, "depth": 1 if depth is None else depth}
        for option, given in sizes.items():
            whole(self.name, option, given)
        self.depth, self.sizes = depth, [rank, d_state, d_state]
        self.x = Linear(d_model, channels, bias=bias)
        self.gate = Linear(d_model, channels, bias=bias)
        self.conv = ShortConv(channels, conv_size, bias=conv_bias, activation="silu")
        self.sbc = Linear(channels, sum(self.sizes))
        self.step = WideLinear(rank, channels)
        # Without weights it fits vectors of any width.
        self.norm = RMSNorm(d_state, eps=norm_eps, affine=False) if norm else None
        self.out = OutLinear(channels, d_model, bias=bias)
        self.A_log = nn.Parameter(torch.empty(channels, d_state))
        self.D, self.dt_bias = (nn.Parameter(torch.empty(channels)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        shrink(self.out.weight, self.depth or 1)
        # Logarithms on the meta device would import torch's compiler.
        if not self.A_log.is_meta:
            with torch.no_grad():
                self.A_log.copy_(torch.arange(1, self.sizes[1] + 1, device=self.A_log.device).log())
        reset_steps(self.dt_bias)
        nn.init.ones_(self.D)
        exempt(self.A_log, self.D)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        channels, keys = self.A_log.shape
        memory = torch.zeros(batch, channels, 1, keys, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, "window": self.conv.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        gate = self.gate(x)
        x, window = self.conv(self.x(x), state.window, steps)
        s, B, C = (part if self.norm is None else self.norm(part) for part in self.sbc(x).split(self.sizes, -1))
        dt = step_size(self.step(s), self.dt_bias)
        A = -wide(self.A_log).exp()
        y, memory = selective_scan(x, dt, A, roomy(B), roomy(C), wide(self.D), state.memory, steps)
        return self.out(y * F.silu(gate), gate.dtype), {"memory": memory, "window": window}
