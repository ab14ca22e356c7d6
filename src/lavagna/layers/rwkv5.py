"""RWKV-5: a matrix for a memory, which fades at a constant pace, one a head or one a channel."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import diagonal, scalar
from lavagna.layers.layer import Layer
from lavagna.modules.bonus import recur_with_bonus, recur_with_exponential_bonus
from lavagna.modules.decay import log_decay_of
from lavagna.modules.heads import heads_of
from lavagna.modules.linear import Linear
from lavagna.modules.norm import HeadNorm
from lavagna.modules.options import choice, number
from lavagna.modules.place import place_of
from lavagna.modules.precision import wide_dtype
from lavagna.modules.spread import reset_bonus, reset_decays, reset_output, reset_projections
from lavagna.modules.steps import Steps
from lavagna.modules.token_shift import Start, TokenShift
from lavagna.modules.weight_decay import exempt
from lavagna.state import State

VERSIONS = ("5.0", "5.1", "5.2")


class RWKV5(Layer):
    """Linear attention that fades at a constant pace, is read before it is written, and has a bonus for this token.

        S_t = S_{t-1} diag(w) + v_t k_t^T          o_t = (S_{t-1} + v_t (u * k_t)^T) r_t
        w = exp(-exp(w0))          y_t = W_out (norm(o_t) * silu(W_g x))

    r is the query; r, k, v are projections. Each x is a blend of its own of this token and the last
    (`modules.token_shift`). The norm is one a head. Decays are float32 at least.

    - heads, head_dim: the largest size up to 64 that divides d_model by default.
    - version: "5.2" has a decay and a bonus u for each channel, `w0` and `u` (h, k); "5.1" one a head, (h, 1); "5.0"
      besides has no gate, and its bonus is exp(u), exact for any u.
    - norm_eps: 64e-5, which is 1e-5 for a read divided by 8.
    - layer_index, depth: the layer's place in its model, from which the initial values follow.

    State: `memory` (b, h, v, k), `window` (b, 1, d), the last token. Peng et al. 2024, arXiv 2404.05892;
    `RWKV_Tmix_x052` of RWKV-LM, and before it `RWKV_TimeMix_RWKV5_Preview`.
    """

    name = "rwkv5"
    block_norm = "layer"
    block_mlp = "rwkv4"
    block_mlp_factor = 3.5
    embedding_norm = True

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        version: str = "5.2",
        norm_eps: float = 64e-5,
        layer_index: int = 0,
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        choice(self.name, "version", version, VERSIONS)
        self.version, self.heads = version, heads_of(self.name, d_model, heads, head_dim)
        self.place = place_of(self.name, layer_index, depth)
        falling, width = self.place.falling, self.heads.width
        starts = {"k": Start(falling), "v": Start(falling, 0.3 * self.place.rising)}
        half = dict.fromkeys("r" if version == "5.0" else "rg", Start(falling / 2))
        self.shift = TokenShift(d_model, starts | half, toward="now")
        self.key, self.value, self.receptance = (Linear(d_model, width) for _ in range(3))
        self.gate = None if version == "5.0" else Linear(d_model, width)
        self.norm = HeadNorm(*self.heads, eps=norm_eps)
        self.out = Linear(width, d_model)
        shape = self.heads if version == "5.2" else (self.heads.count, 1)
        self.w0, self.u = nn.Parameter(torch.empty(shape)), nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As published: what a new layer adds to the stream is zero, decays are spread over heads or channels."""
        super().reset_parameters()
        reset_projections(self.receptance, self.key, self.value, self.gate)
        reset_output(self.norm, self.out, self.place)
        reset_decays(self.w0, self.place, low=-6, span=5)
        if self.version == "5.0":
            nn.init.constant_(self.u, -3.0)
            exempt(self.u)
        else:
            reset_bonus(self.u, self.place, wave=0.1 if self.version == "5.2" else 0)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = torch.zeros(batch, *self.heads, self.heads.size, device=device, dtype=wide_dtype(dtype))
        return {"memory": memory, "window": self.shift.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        (xk, xv, xr, *rest), window = self.shift(x, state.window, steps)
        k, v, r = (z.unflatten(-1, self.heads) for z in (self.key(xk), self.value(xv), self.receptance(xr)))
        decay = diagonal if self.version == "5.2" else scalar
        read = decay(log_decay_of(self.w0)[None, None]), r, k, v, state.memory, self.u, steps
        if self.version == "5.0":
            o, unit, memory = recur_with_exponential_bonus(*read)
            y = self.norm(o, unit).flatten(2)
        else:
            o, memory = recur_with_bonus(*read)
            y = self.norm(o).flatten(2)
        if self.gate is not None:
            y = y * F.silu(self.gate(rest[0]))
        return self.out(y.to(v.dtype)), {"memory": memory, "window": window}
