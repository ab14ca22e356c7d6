"""Retention: every head fades at a constant pace of its own, and positions turn queries and keys."""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lavagna.algebra.transition import scalar
from lavagna.layers.layer import Layer
from lavagna.modules import rotary
from lavagna.modules.activation import ACTIVATIONS
from lavagna.modules.eight_bit import refuse_to_reset
from lavagna.modules.heads import Heads, expanded, heads_of, key_heads_of
from lavagna.modules.linear import Linear, reset_xavier
from lavagna.modules.norm import GatedRMSNorm, RMSNorm
from lavagna.modules.options import choice, number, switch
from lavagna.modules.precision import roomy, wide_dtype
from lavagna.modules.steps import Steps
from lavagna.state import State

DECAYS = ("powers", "paper")
RESCALES = ("none", "scale", "decay", "paper")
# How channels pair up, and the exponents of their frequencies.
ROTATIONS = {"interleaved": rotary.closed, "halves": rotary.standard}


class Retention(Layer):
    """Multi-scale retention: a sum that fades by gamma, a constant of the head, on queries and keys turned by position.

        S_t = gamma S_{t-1} + v_t (R_t k_t)^T          o_t = S_t R_t q_t / sqrt(head_dim)

    Each head's read is RMS-normalized and gated, `norm(o_t) * silu(W_g x_t)`. Before that norm a positive factor c on a
    read does nothing but to turn the norm's eps into eps / c^2. So the published rescalings are as exact as none, for
    any eps, in every form that knows c: see `rescale`.

    - decay: "powers", gamma = 1 - 2^(-5 - h) (the published code), or "paper", 1 - exp(u) with u evenly from log 1/32
      to log 1/512 over the heads (the third version of the paper). Kept as exact logarithms, see `log_gamma`.
    - heads, head_dim: of the keys, head_dim even; at least four heads by default where they can be 16 wide.
    - expand: width of a value over that of a key, 2.
    - kv_heads: keys and values, heads by default; head i of the queries reads head i // (heads / kv_heads) of them.
    - rescale: "scale", reads over sqrt(head_dim) as above; "none", not even that; "decay", besides over sqrt(s_t), with
      s_t = 1 + gamma + ... + gamma^(t-1) the sum of a row of decays (torchscale step by step); "paper", besides over
      max(|sum of the row's scores|, 1), for which the memory keeps the sum of the faded keys as one more value. The sum
      of |scores|, by which later torchscale divides where it has all of them, no memory of fixed size can keep.
    - rotation: "interleaved", neighbors a pair and exponents from 0 to 1 (torchscale), or "halves", first half with
      second and exponents below 1 (flash-linear-attention).
    - affine: whether the norm has weights, False; gate: whether there is one, True; activation: of the gate.

    State: `memory` (b, h, v, k), v one more for "paper". Sun et al. 2023, arXiv 2307.08621; `MultiScaleRetention` of
    torchscale.
    """

    name = "retention"

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        expand: float = 2,
        kv_heads: int | None = None,
        decay: str = "powers",
        rescale: str = "scale",
        rotation: str = "interleaved",
        affine: bool = False,
        gate: bool = True,
        activation: str = "silu",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        switch(self.name, "affine", affine)
        switch(self.name, "gate", gate)
        choice(self.name, "decay", decay, DECAYS)
        choice(self.name, "rotation", rotation, ROTATIONS)
        choice(self.name, "activation", activation, ACTIVATIONS)
        self._check_rescale(rescale)
        most = min(64, max(16, d_model // 4))
        self.keys = heads_of(self.name, d_model, heads, head_dim, most=most)
        if self.keys.size % 2:
            raise ValueError(
                f"{self.name}: head_dim must be even, for channels turn in pairs, but is {self.keys.size}. "
                f"Use head_dim={self.keys.size + 1} with heads={self.keys.count}."
            )
        self.values = Heads(self.keys.count, expanded(self.name, "head_dim", self.keys.size, expand))
        self.decay, self.rescale, self.rotation = decay, rescale, rotation
        self.written = key_heads_of(self.name, self.keys, kv_heads)
        keys, values = self.keys.width, self.values.width
        self.sizes = [keys, *(self.written.count * size for size in (self.keys.size, self.values.size))]
        self.sizes += [values] if gate else []
        self.qkvg = Linear(d_model, sum(self.sizes))
        norm = partial(GatedRMSNorm, activation=activation) if gate else RMSNorm
        self.norm = norm(self.values.size, eps=norm_eps, affine=affine)
        self.out = Linear(values, d_model)
        self.reset_parameters()

    def _check_rescale(self, rescale: object) -> None:
        if rescale == "scores":
            raise ValueError(
                f"{self.name}: rescale='scores', a read over the sum of its scores' absolute values, needs the scores "
                "of all steps before, which a memory of fixed size does not hold; but for norm_eps it cancels in the "
                "norm. Use rescale='paper', the absolute value of their sum, or 'decay', torchscale's step by step."
            )
        choice(self.name, "rescale", rescale, RESCALES)

    def reset_parameters(self) -> None:
        """Glorot's rule with gain 2^-2.5 for queries, keys, values and gates and 1/2 for the output, as published."""
        refuse_to_reset(self)
        reset_xavier(self.qkvg.weight, self.sizes, gain=2**-2.5)
        reset_xavier(self.out.weight, [self.d_model], gain=0.5)
        self.norm.reset_parameters()

    def log_gamma(self, *, device: torch.device | str | None = None) -> Float[Tensor, " h"]:
        """The log-decay of each head, float64, made anew at each call: no cast of the layer can round it to 0."""
        heads = self.keys.count
        if self.decay == "powers":
            return torch.log1p(-torch.exp2(-5 - torch.arange(heads, device=device, dtype=torch.float64)))
        low, high = torch.tensor([1 / 32, 1 / 512], dtype=torch.float64).log().tolist()
        return torch.log1p(-torch.linspace(low, high, heads, device=device, dtype=torch.float64).exp())

    def decay_sums(self, positions: Int[Tensor, "b t"]) -> Float[Tensor, "b t h"]:
        """What the decays up to each position, counted from 0, sum to: `(1 - gamma^(p + 1)) / (1 - gamma)`, float64."""
        # As written the two differences have no digits left where gamma is nearly 1.
        log_gamma = self.log_gamma(device=positions.device)
        return torch.expm1((positions + 1).unsqueeze(-1) * log_gamma) / torch.expm1(log_gamma)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        count, size = self.values
        shape = (batch, count, size + (self.rescale == "paper"), self.keys.size)
        return {"memory": torch.zeros(shape, device=device, dtype=wide_dtype(dtype))}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v, *gates = self.qkvg(x).split(self.sizes, -1)
        positions = steps.positions(state.tokens_seen)
        q, k, v = q.unflatten(-1, self.keys), k.unflatten(-1, self.written), v.unflatten(-1, (self.written.count, -1))
        if self.rescale != "none":
            q = q * self.keys.size**-0.5
        if self.rescale in ("decay", "paper"):
            # A factor of a read is one of its query: here, before anything of them is rounded or grows too large.
            q = q * self.decay_sums(positions).rsqrt().to(wide_dtype(x.dtype)).unsqueeze(-1)
        angles = ROTATIONS[self.rotation](self.keys.size, device=x.device)
        q, k = (rotary.rotate(z, positions, angles, pairs=self.rotation).to(v.dtype) for z in (q, k))
        if (group := self.keys.count // self.written.count) > 1:
            # Each head of the queries fades at its own pace, and so has a memory of its own.
            k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        o, memory = self._read(q, k, v, state, steps)
        y = self.norm(o, *(gate.unflatten(-1, self.values) for gate in gates))
        return self.out(y.flatten(2).to(v.dtype)), {"memory": memory}

    def _read(self, q: Tensor, k: Tensor, v: Tensor, state: State, steps: Steps) -> tuple[Tensor, Tensor]:
        log_gamma = self.log_gamma(device=v.device).to(wide_dtype(v.dtype))
        q, k, v = roomy(q), roomy(k), roomy(v)
        if self.rescale == "paper":
            v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        o, memory = steps.recur(scalar(log_gamma[None, None, :, None]), q, k, v, state.memory)
        return (o[..., :-1] / o[..., -1:].abs().clamp_min(1) if self.rescale == "paper" else o), memory
