"""The Delta Network of 2021: linear attention as a fast weight that is corrected, on keys whose parts add up to one."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import householder, identity
from lavagna.layers.layer import Layer
from lavagna.modules.feature_map import dpfp, feature_map
from lavagna.modules.heads import heads_of
from lavagna.modules.linear import Linear, WideLinear
from lavagna.modules.norm import shares
from lavagna.modules.options import choice, switch, whole
from lavagna.modules.precision import wide, wide_dtype
from lavagna.modules.steps import Steps
from lavagna.state import State

MAPS = ("dpfp", "elu_plus_one")


class FastWeight(Layer):
    """A fast weight matrix programmed by the delta rule, the first of its family.

        W_t = W_{t-1} + beta_t (v_t - W_{t-1} k_t) k_t^T          o_t = W_t q_t / sqrt(head_dim)
        k_t = phi(W_k x_t) / sum(phi(W_k x_t)),  q_t likewise          beta_t = sigmoid(W_b x_t)

    Sums of one in the place of lengths of one: a key's weights are shares, so a read is a mean of values and nothing
    diverges. The feature map phi is never negative:

    - feature_map: "dpfp", r_i r_{i - j} for r = [relu(x), relu(-x)] and shifts j = 1 .. nu, 2 nu head_dim features; or
      "elu_plus_one", head_dim features.
    - nu: shifts of "dpfp", 1; larger keys hold more values apart.
    - normalize: divide the read by z_t^T q_t, z_t the sum of all keys so far (the attention's normalizer); with eps.
    - heads, head_dim: heads of the largest size up to 64 that divides d_model by default.

    State: `memory` (b, h, v, features); with `normalize` also `sum_of_keys` (b, h, 1, features).
    Schlag, Irie and Schmidhuber 2021, arXiv 2102.11174.
    """

    name = "fast_weight"

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        feature_map: str = "dpfp",
        nu: int = 1,
        normalize: bool = False,
    ) -> None:
        super().__init__(d_model)
        choice(self.name, "feature_map", feature_map, MAPS)
        whole(self.name, "nu", nu)
        switch(self.name, "normalize", normalize)
        self.heads = heads_of(self.name, d_model, heads, head_dim)
        self.feature_map, self.nu, self.normalize = feature_map, nu, normalize
        self.features = self.heads.size * (2 * nu if feature_map == "dpfp" else 1)
        self.qkv = Linear(d_model, 3 * self.heads.width)
        self.beta = WideLinear(d_model, self.heads.count)
        self.out = Linear(self.heads.width, d_model)
        self.reset_parameters()

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        rows = {"memory": self.heads.size} | ({"sum_of_keys": 1} if self.normalize else {})
        shapes = {name: (batch, self.heads.count, height, self.features) for name, height in rows.items()}
        return {name: torch.zeros(shape, device=device, dtype=wide_dtype(dtype)) for name, shape in shapes.items()}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.qkv(x).unflatten(-1, (3, *self.heads)).unbind(2)
        # Wide, because products of two channels of 256 are beyond float16.
        q, k = (shares(self._features(wide(z))).to(v.dtype) for z in (q, k))
        beta = self.beta(x).sigmoid().unsqueeze(-1)
        write = (beta * v).to(v.dtype)
        o, memory = steps.recur(householder(k, beta), q * self.heads.size**-0.5, k, write, state.memory)
        tensors = {"memory": memory}
        if self.normalize:
            one = torch.ones_like(v[..., :1])
            weight, tensors["sum_of_keys"] = steps.recur(identity(), q, k, one, state.sum_of_keys)
            o = (wide(o) / (wide(weight) + 1e-5)).to(o.dtype)
        return self.out(o.flatten(2)), tensors

    def _features(self, x: Float[Tensor, "b t h k"]) -> Float[Tensor, "b t h f"]:
        return dpfp(x, self.nu) if self.feature_map == "dpfp" else feature_map(self.name, self.feature_map)(x)
