"""RWKV-4: each channel remembers one average, whose weights the keys decide."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.layers.layer import Layer
from lavagna.modules.decay import log_decay_of
from lavagna.modules.heads import expanded
from lavagna.modules.linear import Linear, reset_orthogonal
from lavagna.modules.place import place_of
from lavagna.modules.precision import wide
from lavagna.modules.spread import reset_decays, zigzag
from lavagna.modules.steps import Steps
from lavagna.modules.token_shift import Start, TokenShift
from lavagna.modules.weight_decay import exempt
from lavagna.modules.wkv import initial_sums, wkv
from lavagna.state import State


class RWKV4(Layer):
    """An attention without queries: each channel's average of all values so far, by fading weights e^k.

        wkv_t = (sum_{i<t} e^{(t-1-i) w + k_i} v_i + e^{u + k_t} v_t) / (sum_{i<t} e^{(t-1-i) w + k_i} + e^{u + k_t})
        y_t = W_out (sigmoid(W_r x) * wkv_t)          w = -exp(w0)

    k and v are projections. Each x is a blend of its own of this token and the last (`modules.token_shift`). Weights
    are kept over a stabilizer (`modules.wkv`), so keys of +-100 and beyond are exact in every form.

    - expand: channels over d_model, 1.
    - layer_index, depth: the layer's place in its model, from which the initial values follow.

    State: `memory` (b, c, 2, 1), numerator and denominator over e^stabilizer, `stabilizer` (b, c, 1), `window`
    (b, 1, d), the last token. Peng et al. 2023, arXiv 2305.13048; `RWKV_TimeMix` of RWKV-LM.
    """

    name = "rwkv4"
    block_norm = "layer"
    block_mlp = "rwkv4"
    block_mlp_factor = 4
    embedding_norm = True

    def __init__(self, d_model: int, *, expand: float = 1, layer_index: int = 0, depth: int | None = None) -> None:
        super().__init__(d_model)
        self.width = expanded(self.name, "d_model", d_model, expand)
        self.place = place_of(self.name, layer_index, depth)
        falling = self.place.falling
        starts = {"k": Start(falling), "v": Start(falling, 0.3 * self.place.rising), "r": Start(falling / 2)}
        self.shift = TokenShift(d_model, starts, toward="now")
        self.key, self.value, self.receptance = (Linear(d_model, self.width) for _ in range(3))
        self.out = Linear(self.width, d_model)
        self.w0, self.u = nn.Parameter(torch.empty(self.width)), nn.Parameter(torch.empty(self.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As published: keys, receptances and what a new layer adds to the stream are zero, decays are spread."""
        super().reset_parameters()
        for part in (self.key, self.receptance, self.out):
            nn.init.zeros_(part.weight)
        reset_orthogonal(self.value.weight, gain=max(self.width / self.d_model, 1) ** 0.5)
        reset_decays(self.w0, self.place, low=-5, span=8)
        # The meta device has no values to set, and torch imports its compiler to find that out.
        if not self.u.is_meta:
            self.u.detach().copy_(math.log(0.3) + 0.5 * zigzag(self.width, device=self.u.device))
        exempt(self.u)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        window = self.shift.initial_window(batch, device, dtype)
        return {**initial_sums(self.width, batch, device, dtype), "window": window}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        (xk, xv, xr), window = self.shift(x, state.window, steps)
        r, k, v = self.receptance(xr), self.key(xk), self.value(xv)
        y, memory, stabilizer = wkv(log_decay_of(self.w0), self.u, k, v, state.memory, state.stabilizer, steps)
        y = torch.sigmoid(wide(r)) * y
        return self.out(y.to(v.dtype)), {"memory": memory, "stabilizer": stabilizer, "window": window}
