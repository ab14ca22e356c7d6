"""Gated feed-forward nets, each step by itself."""

from functools import partial

from jaxtyping import Float, Shaped
from torch import Tensor

from lavagna.modules.activation import ACTIVATIONS
from lavagna.modules.feed_forward import FeedForward
from lavagna.modules.linear import Linear, OutLinear
from lavagna.modules.precision import roomy
from lavagna.modules.steps import Steps


class GatedMLP(FeedForward):
    """`down(activation(gate(x)) * up(x))`, `hidden` channels inside. Shazeer 2020, arXiv 2002.05202."""

    def __init__(
        self,
        d_model: int,
        hidden: int,
        *,
        activation: str,
        bias: bool = False,
        layer_index: int = 0,
        depth: int = 1,
    ) -> None:
        super().__init__()
        self.hidden, self.activation = hidden, activation
        self.gate_up = Linear(d_model, 2 * hidden, bias=bias)
        self.down = OutLinear(hidden, d_model, bias=bias)

    def reset_parameters(self) -> None:
        """Each map as `Linear` sets it."""
        self.gate_up.reset_parameters()
        self.down.reset_parameters()

    @property
    def last(self) -> Tensor:
        """The map back to the model's width."""
        return self.down.weight

    def forward(
        self, x: Float[Tensor, "b t d"], tensors: dict[str, Shaped[Tensor, "..."]], steps: Steps
    ) -> tuple[Float[Tensor, "b t d"], dict[str, Shaped[Tensor, "..."]]]:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(ACTIVATIONS[self.activation](gate) * roomy(up), gate.dtype), {}


swiglu = partial(GatedMLP, activation="silu")
geglu = partial(GatedMLP, activation="gelu")
geglu_tanh = partial(GatedMLP, activation="gelu_tanh")
reglu = partial(GatedMLP, activation="relu")
geglu_tanh_bias = partial(GatedMLP, activation="gelu_tanh", bias=True)
