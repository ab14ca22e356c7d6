"""H3: a memory of the last tokens and a long one, with products between them, so that a token can be compared."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.autocast import without_autocast
from lavagna.forms import FORMS
from lavagna.forms.convolution import convolution
from lavagna.layers.layer import Layer
from lavagna.modules.diagonal_ssm import DiagonalSSM
from lavagna.modules.heads import heads_of
from lavagna.modules.linear import Linear, OutLinear
from lavagna.modules.options import whole
from lavagna.modules.precision import wide
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State


class Shift(ShortConv):
    """The state-space model whose matrix shifts its state by one: a filter of as many taps as it has states."""

    # With so many taps a transform costs less than their sums.
    def _fused(self, x: Tensor, steps: Steps) -> None:
        return None

    def _weighted(self, past: Tensor, length: int) -> Tensor:
        window, x = wide(past).mT.split([self.width - 1, length], -1)
        return convolution(x, wide(self.weight).flip(-1), window).output.mT


class H3(Layer):
    """Two linear systems with products between: what lay just before a token is written under what it was.

        q, k, v = projections of x          k' = shift(k) + D_shift k
        z_t = k'_t v_t^T  (a head)          z' = ssm(z) + D z          y_t = q_t^T z'_t

    `shift` is a filter over the last `conv_size` tokens, a channel; `ssm` a diagonal system a head (`DiagonalSSM`),
    which all head_dim^2 entries of the head's z pass through. Options:

    - heads, head_dim: head_dim is 1 by default, and products are then element by element; the paper's language models
      take 8, whose state is head_dim times as large.
    - d_state: real degrees of freedom of the diagonal system, 64; conv_size: taps of the shift, d_state by default.
    - init, discretization, dt_min, dt_max: the diagonal system's, see `DiagonalSSM`.

    State: `memory` (b, h, head_dim^2, d_state / 2, 2), complex numbers as pairs, row i * head_dim + j that of k_i v_j;
    (b, h, head_dim^2, d_state) for init="real"; `window` (b, conv_size - 1, d). Products, systems and their skips are
    float32 at least. Both D are standard normal. Every form is the diagonal system's, "convolution" too.
    Fu, Dao et al. 2023, arXiv 2212.14052; `H3` of HazyResearch/H3.
    """

    name = "h3"
    forms = (*FORMS, "convolution")

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        d_state: int = 64,
        conv_size: int | None = None,
        init: str = "lin",
        discretization: str = "zoh",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
    ) -> None:
        super().__init__(d_model)
        self.heads = heads_of(self.name, d_model, heads, 1 if heads is None and head_dim is None else head_dim)
        inner = self.heads.width
        taps = d_state if conv_size is None else conv_size
        whole(self.name, "d_state", d_state)
        whole(self.name, "conv_size", taps)
        self.system = DiagonalSSM(
            self.name,
            self.heads.count,
            d_state,
            init=init,
            discretization=discretization,
            dt_min=dt_min,
            dt_max=dt_max,
        )
        self.qkv = Linear(d_model, 3 * inner)
        self.shift = Shift(inner, taps)
        self.D_shift, self.D = nn.Parameter(torch.empty(inner)), nn.Parameter(torch.empty(self.heads.count))
        self.out = OutLinear(inner, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for skip in (self.D_shift, self.D):
            if not skip.is_meta:
                nn.init.normal_(skip)
        exempt(self.D_shift, self.D)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        memory = self.system.initial_memory(batch, self.heads.size**2, device, dtype)
        return {"memory": memory, "window": self.shift.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.qkv(x).chunk(3, -1)
        narrow = v.dtype
        shifted, window = self.shift(k, state.window, steps)
        # Autocast would take these products to half precision.
        with without_autocast(x):
            k = wide(shifted) + self.D_shift * wide(k)
            q, k, v = (wide(part).unflatten(-1, self.heads) for part in (q, k, v))
            z = (k.unsqueeze(-1) * v.unsqueeze(-2)).flatten(3)
            y, memory = self.system(z, state.memory, steps)
            y = (y + self.D[:, None] * z).unflatten(-1, (self.heads.size, self.heads.size))
            read = (q.unsqueeze(-1) * y).sum(-2).flatten(2)
        return self.out(read, narrow), {"memory": memory, "window": window}
