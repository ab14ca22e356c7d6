"""Retention: every head fades at a constant pace of its own, and positions turn queries and keys."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import scalar
from lavagna.layers.layer import Layer
from lavagna.modules import rotary
from lavagna.modules.heads import Heads, expanded, heads_of
from lavagna.modules.linear import Linear, reset_xavier
from lavagna.modules.norm import GatedRMSNorm
from lavagna.modules.options import number
from lavagna.modules.precision import wide_dtype
from lavagna.modules.steps import Steps
from lavagna.state import State

DECAYS = ("powers", "paper")


class Retention(Layer):
    """Multi-scale retention: a sum that fades by gamma, a constant of the head, on queries and keys turned by position.

        S_t = gamma S_{t-1} + v_t (R_t k_t)^T          o_t = S_t R_t q_t / sqrt(head_dim)

    Each head's read is RMS-normalized without weights and gated by silu. Nothing else is normalized: the published
    divisions of the scores by their sums cancel in the norm, and so all forms agree at every scale of the input.

    - decay: "powers", gamma = 1 - 2^(-5 - h) (the published code), or "paper", 1 - exp(u) with u evenly from log 1/32
      to log 1/512 over the heads (the third version of the paper). Kept as exact logarithms, see `log_gamma`.
    - heads, head_dim: of the keys, head_dim even; at least four heads by default where they can be 16 wide.
    - expand: width of a value over that of a key, 2.

    State: `memory` (b, h, v, k). Sun et al. 2023, arXiv 2307.08621; `MultiScaleRetention` of torchscale.
    """

    name = "retention"

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        expand: float = 2,
        decay: str = "powers",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        if decay not in DECAYS:
            raise ValueError(f"{self.name}: decay must be one of {', '.join(DECAYS)}, but came as {decay!r}.")
        most = min(64, max(16, d_model // 4))
        self.keys = heads_of(self.name, d_model, heads, head_dim, most=most)
        if self.keys.size % 2:
            raise ValueError(
                f"{self.name}: head_dim must be even, for channels turn in pairs, but is {self.keys.size}. "
                f"Use head_dim={self.keys.size + 1} with heads={self.keys.count}."
            )
        self.values = Heads(self.keys.count, expanded(self.name, "head_dim", self.keys.size, expand))
        self.decay = decay
        keys, values = self.keys.count * self.keys.size, self.values.count * self.values.size
        self.sizes = [keys, keys, values, values]
        self.qkvg = Linear(d_model, sum(self.sizes))
        self.norm = GatedRMSNorm(self.values.size, eps=norm_eps, affine=False)
        self.out = Linear(values, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's rule with gain 2^-2.5 for queries, keys, values and gates and 1/2 for the output, as published."""
        reset_xavier(self.qkvg.weight, self.sizes, gain=2**-2.5)
        reset_xavier(self.out.weight, [self.d_model], gain=0.5)

    def log_gamma(self, *, device: torch.device | str | None = None) -> Float[Tensor, " h"]:
        """The log-decay of each head, float64, made anew at each call: no cast of the layer can round it to 0."""
        heads = self.keys.count
        if self.decay == "powers":
            return torch.log1p(-torch.exp2(-5 - torch.arange(heads, device=device, dtype=torch.float64)))
        low, high = torch.tensor([1 / 32, 1 / 512], dtype=torch.float64).log().tolist()
        return torch.log1p(-torch.linspace(low, high, heads, device=device, dtype=torch.float64).exp())

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        shape = (batch, *self.values, self.keys.size)
        return {"memory": torch.zeros(shape, device=device, dtype=wide_dtype(dtype))}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v, gate = self.qkvg(x).split(self.sizes, -1)
        positions, angles = steps.positions(state.tokens_seen), rotary.closed(self.keys.size, device=x.device)
        q, k = (
            rotary.rotate(z.unflatten(-1, self.keys), positions, angles, pairs="interleaved")
            for z in (q * self.keys.size**-0.5, k)
        )
        log_gamma = self.log_gamma(device=x.device).to(wide_dtype(x.dtype))
        o, memory = steps.recur(
            scalar(log_gamma[None, None, :, None]), q, k, v.unflatten(-1, self.values), state.memory
        )
        y = self.norm(o, gate.unflatten(-1, self.values))
        return self.out(y.flatten(2)), {"memory": memory}
