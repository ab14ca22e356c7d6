"""The feed-forward half of a block."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.modules.linear import Linear


class SwiGLU(nn.Module):
    """A gated feed-forward net, `down(silu(gate(x)) * up(x))`. Hidden width 8/3 d, rounded up to a multiple of 16.

    Shazeer 2020, arXiv 2002.05202.
    """

    def __init__(self, d_model: int, *, hidden: int | None = None) -> None:
        super().__init__()
        hidden = -(-8 * d_model // 3 // 16) * 16 if hidden is None else hidden
        self.hidden = hidden
        self.gate_up = Linear(d_model, 2 * hidden)
        self.down = Linear(hidden, d_model)

    def reset_parameters(self) -> None:
        """Each map as `Linear` sets it."""
        self.gate_up.reset_parameters()
        self.down.reset_parameters()

    def forward(self, x: Float[Tensor, "*axes d"]) -> Float[Tensor, "*axes d"]:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)
