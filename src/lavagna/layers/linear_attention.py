"""Linear attention: the memory is a plain sum of value times key."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import identity
from lavagna.layers.layer import Layer
from lavagna.modules.feature_map import NEVER_NEGATIVE, feature_map
from lavagna.modules.heads import heads_of
from lavagna.modules.linear import Linear
from lavagna.modules.norm import RMSNorm
from lavagna.modules.options import number, switch
from lavagna.modules.precision import roomy, wide, wide_dtype
from lavagna.modules.steps import Steps
from lavagna.state import State


class LinearAttention(Layer):
    """Attention with a feature map in place of the softmax's exponential, so that its memory has a fixed size.

        S_t = S_{t-1} + v_t phi(k_t)^T          o_t = S_t phi(q_t)

    With `normalize` the read is divided by the sum of its weights, `o_t / (n_t^T phi(q_t))` with `n_t = n_{t-1} +
    phi(k_t)`: the normalizer of 2020, carried as one more value row of the memory. It wants a feature map that is never
    negative; where every weight is zero (relu) the read is zero. Without it each head's read is RMS-normalized.

    - feature_map: "elu_plus_one", "relu" or "identity".
    - heads, head_dim: heads of the largest size up to 64 that divides d_model by default.

    State: `memory` (b, h, v, k), v one more with `normalize`. Katharopoulos et al. 2020, arXiv 2006.16236; the norm in
    the normalizer's place: Qin et al. 2022, arXiv 2210.10340.
    """

    name = "linear_attention"

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        feature_map: str = "elu_plus_one",
        normalize: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        switch(self.name, "normalize", normalize)
        self.heads, self.head_dim = heads_of(self.name, d_model, heads, head_dim)
        self.feature_map, self.normalize = feature_map, normalize
        self._check_map()
        width = self.heads * self.head_dim
        self.qkv = Linear(d_model, 3 * width)
        self.norm = None if normalize else RMSNorm(self.head_dim, eps=norm_eps)
        self.out = Linear(width, d_model)
        self.reset_parameters()

    def _check_map(self) -> None:
        feature_map(self.name, self.feature_map)
        if self.normalize and self.feature_map not in NEVER_NEGATIVE:
            raise ValueError(
                f"{self.name}: normalize divides by a sum of weights, which feature_map={self.feature_map!r} may make "
                f"zero. Use one of {', '.join(NEVER_NEGATIVE)}."
            )

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        rows = self.head_dim + self.normalize
        shape = (batch, self.heads, rows, self.head_dim)
        return {"memory": torch.zeros(shape, device=device, dtype=wide_dtype(dtype))}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.head_dim)).unbind(2)
        phi = feature_map(self.name, self.feature_map)
        read = self._divided if self.norm is None else self._normed
        o, memory = read(phi(q), phi(k), v, state, steps)
        return self.out(o.flatten(2)), {"memory": memory}

    def _normed(self, q: Tensor, k: Tensor, v: Tensor, state: State, steps: Steps) -> tuple[Tensor, Tensor]:
        assert self.norm is not None
        o, memory = steps.recur(identity(), roomy(q), roomy(k), roomy(v), state.memory)
        return self.norm(o).to(v.dtype), memory

    def _divided(self, q: Tensor, k: Tensor, v: Tensor, state: State, steps: Steps) -> tuple[Tensor, Tensor]:
        # The quotient of two sums rounded to bfloat16 would lose what the float32 memory kept.
        v_and_one = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        o, memory = steps.recur(identity(), wide(q), wide(k), wide(v_and_one), state.memory)
        weight = o[..., -1:]
        return (o[..., :-1] / torch.where(weight == 0, 1, weight)).to(v.dtype), memory
