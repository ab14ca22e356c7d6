"""Mamba-2: a state-space model with one decay a head, which is a linear attention with a fading memory."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import scalar
from lavagna.layers.layer import Layer
from lavagna.modules.decay import rate, reset_rates, reset_steps, step_size
from lavagna.modules.heads import expanded, groups_of, heads_of
from lavagna.modules.linear import Linear, WideLinear, shrink
from lavagna.modules.norm import GroupedRMSNorm
from lavagna.modules.options import number, switch, whole
from lavagna.modules.precision import roomy, wide, wide_dtype
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State


class Mamba2(Layer):
    """A state-space model whose every head has one decay, set by a step size that the token decides.

        S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T          y_t = S_t C_t + D x_t
        A = -exp(A_log)          dt_t = softplus(W_dt u_t + dt_bias), kept within dt_limit

    In the letters of the other layers x is the value, B the key, C the query. x, B, C are projections of the input u,
    convolved over `conv_size` tokens and passed through SiLU. Head h reads group h // (heads / groups) of B and C. The
    result is gated, then RMS-normalized over each of the `groups` spans: `norm(y * silu(z))`, or `norm(y) * silu(z)`
    with `norm_before_gate`.

    - expand: width of x over d_model, 2; heads, head_dim: of x, the largest size up to 64 by default.
    - d_state: width of B and C, d_model up to 128 by default; groups: how many B and C there are, 1.
    - dt_limit: smallest and largest step size. Decays and step sizes are float32 at least.
    - D_per_channel: one D for each channel of x, False for one a head.
    - bias, conv_bias: whether the projections in and out, and the convolution, have biases: no, and yes.
    - depth: how many layers the model has; the output weights start smaller by its square root.

    State: `memory` (b, h, head_dim, d_state), `window` (b, conv_size - 1, channels of x, B, C). Initial rates
    exp(A_log) are uniform in [1, 16], D is 1, step sizes softplus(dt_bias) log-uniform in [1e-3, 0.1].
    Dao and Gu 2024, arXiv 2405.21060; `Mamba2` of mamba_ssm.
    """

    name = "mamba2"
    block_mlp = None

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        d_state: int | None = None,
        groups: int = 1,
        expand: float = 2,
        conv_size: int = 4,
        dt_limit: tuple[float, float] = (0.0, float("inf")),
        D_per_channel: bool = False,
        norm_before_gate: bool = False,
        bias: bool = False,
        conv_bias: bool = True,
        norm_eps: float = 1e-5,
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        switches = {"D_per_channel": D_per_channel, "norm_before_gate": norm_before_gate}
        for option, given in (switches | {"bias": bias, "conv_bias": conv_bias}).items():
            switch(self.name, option, given)
        width = expanded(self.name, "d_model", d_model, expand)
        self.values = heads_of(self.name, width, heads, head_dim, what="expand * d_model")
        self.keys = groups_of(self.name, d_model, self.values, groups, d_state)
        self._check(conv_size, dt_limit, depth)
        self.dt_limit, self.depth = dt_limit, depth
        inner, width = self.values.width, self.keys.width
        self.sizes = [inner, width, width]
        self.gate = Linear(d_model, inner, bias=bias)
        self.xbc = Linear(d_model, sum(self.sizes), bias=bias)
        self.step = WideLinear(d_model, self.values.count, bias=bias)
        self.conv = ShortConv(sum(self.sizes), conv_size, bias=conv_bias, activation="silu")
        self.norm = GroupedRMSNorm(inner, groups=groups, norm_before_gate=norm_before_gate, eps=norm_eps)
        self.out = Linear(inner, d_model, bias=bias)
        self.A_log, self.dt_bias = (nn.Parameter(torch.empty(self.values.count)) for _ in range(2))
        self.D = nn.Parameter(torch.empty(self.values if D_per_channel else self.values.count))
        self.reset_parameters()

    def _check(self, conv_size: int, dt_limit: tuple[float, float], depth: int | None) -> None:
        whole(self.name, "conv_size", conv_size)
        whole(self.name, "depth", 1 if depth is None else depth)
        pair = isinstance(dt_limit, list | tuple) and len(dt_limit) == 2
        if not pair or not all(isinstance(x, int | float) for x in dt_limit) or not 0 <= dt_limit[0] <= dt_limit[1]:
            raise ValueError(
                f"{self.name}: dt_limit must be (low, high) with 0 <= low <= high, but came as {dt_limit}."
            )

    def reset_parameters(self) -> None:
        super().reset_parameters()
        shrink(self.out.weight, self.depth or 1)
        reset_rates(self.A_log, low=1, high=16)
        reset_steps(self.dt_bias)
        nn.init.ones_(self.D)
        exempt(self.D)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, *self.values, self.keys.size, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, "window": self.conv.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        mixed, window = self.conv(self.xbc(x), state.window, steps)
        v, k, q = mixed.split(self.sizes, -1)
        v, k, q = v.unflatten(-1, self.values), k.unflatten(-1, self.keys), q.unflatten(-1, self.keys)
        dt = step_size(self.step(x), self.dt_bias).clamp(*self.dt_limit).unsqueeze(-1)
        a = scalar(rate(self.A_log), step=dt)
        o, memory = steps.recur(a, roomy(q), roomy(k), (dt * v).to(roomy(v).dtype), state.memory)
        D = wide(self.D)
        o = torch.addcmul(o, D if D.ndim == 2 else D[:, None], v).to(o.dtype)
        return self.out(self.norm(o.flatten(2), self.gate(x)).to(v.dtype)), {"memory": memory, "window": window}
