"""RWKV-6: every key channel fades at a pace that the token decides, and so do the blends of this token and the last."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import diagonal
from lavagna.layers.layer import Layer
from lavagna.modules.bonus import recur_with_bonus
from lavagna.modules.decay import log_decay_of
from lavagna.modules.heads import heads_of
from lavagna.modules.joined import joined
from lavagna.modules.linear import Linear, LowRank
from lavagna.modules.norm import HeadNorm
from lavagna.modules.options import number, switch, whole
from lavagna.modules.place import place_of
from lavagna.modules.precision import wide_dtype
from lavagna.modules.spread import reset_bonus, reset_decays, reset_output, reset_projections
from lavagna.modules.steps import Steps
from lavagna.modules.token_shift import DynamicShift, Start
from lavagna.modules.weight_decay import exempt
from lavagna.state import State


class RWKV6(Layer):
    """Linear attention that fades channel by channel, is read before it is written, and has a bonus for this token.

        S_t = S_{t-1} diag(w_t) + v_t k_t^T          o_t = (S_{t-1} + v_t (u * k_t)^T) r_t
        w_t = exp(-exp(w0 + W_2 tanh(W_1 x)))          y_t = W_out (norm(o_t) * silu(W_g x))

    r is the query; r, k, v are projections. Each x is a blend of this token and the last that the token decides
    (`modules.token_shift.DynamicShift`). The norm is one a head. Decays are float32 at least.

    - heads, head_dim: the largest size up to 64 that divides d_model by default.
    - mix_rank, decay_rank: of the maps of low rank behind the blends, 32, and the decays, 64.
    - learned_state: whether the memory before the first token is a parameter (`time_state`), `start` (h, v, k), in
      place of zero.
    - norm_eps: 64e-5, which is 1e-5 for a read divided by 8.
    - layer_index, depth: the layer's place in its model, from which the initial values follow.

    State: `memory` (b, h, v, k), `window` (b, 1, d), the last token. Peng et al. 2024, arXiv 2404.05892;
    `RWKV_Tmix_x060` of RWKV-LM.
    """

    name = "rwkv6"
    block_norm = "layer"
    block_mlp = "rwkv6"
    block_mlp_factor = 3.5
    embedding_norm = True

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        mix_rank: int = 32,
        decay_rank: int = 64,
        learned_state: bool = False,
        norm_eps: float = 64e-5,
        layer_index: int = 0,
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        switch(self.name, "learned_state", learned_state)
        whole(self.name, "mix_rank", mix_rank)
        whole(self.name, "decay_rank", decay_rank)
        self.heads = heads_of(self.name, d_model, heads, head_dim)
        self.place = place_of(self.name, layer_index, depth)
        falling, width = self.place.falling, self.heads.width
        starts = dict.fromkeys("xwk", Start(falling)) | {"v": Start(falling, 0.3 * self.place.rising)}
        self.shift = DynamicShift(d_model, starts | dict.fromkeys("rg", Start(falling / 2)), rank=mix_rank)
        self.receptance, self.key, self.value, self.gate = (Linear(d_model, width) for _ in range(4))
        self.decay = LowRank(d_model, decay_rank, width, activation=torch.tanh, bias=False)
        self.norm = HeadNorm(*self.heads, eps=norm_eps)
        self.out = Linear(width, d_model)
        self.w0 = nn.Parameter(torch.empty(width))
        self.u = nn.Parameter(torch.empty(self.heads))
        self.start = nn.Parameter(torch.empty(*self.heads, self.heads.size)) if learned_state else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As published: what a new layer adds to the stream is zero, decays are spread over the channels."""
        super().reset_parameters()
        reset_projections(self.receptance, self.key, self.value, self.gate)
        reset_output(self.norm, self.out, self.place)
        nn.init.zeros_(self.decay.down.weight)
        nn.init.uniform_(self.decay.up.weight, -0.01, 0.01)
        reset_decays(self.w0, self.place, low=-6, span=5)
        reset_bonus(self.u, self.place, wave=0.1)
        if self.start is not None:
            nn.init.zeros_(self.start)
        exempt(self.start)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, *self.heads, self.heads.size, device=device, dtype=wide_dtype(dtype))
        if self.start is not None:
            memory = memory + self.start.to(memory)
        return {"memory": memory, "window": self.shift.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        (xw, xk, xv, xr, xg), window = self.shift(x, state.window, steps)
        r, k, v = (z.unflatten(-1, self.heads) for z in (self.receptance(xr), self.key(xk), self.value(xv)))
        a = diagonal(log_decay_of(self.w0 + self.decay(xw)).unflatten(-1, self.heads))
        o, memory = recur_with_bonus(a, r, k, v, joined(state.memory, self.start), self.u, steps)
        y = self.norm(o).flatten(2) * F.silu(self.gate(xg))
        return self.out(y.to(v.dtype)), {"memory": memory, "window": window}
