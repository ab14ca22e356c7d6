"""The half of a block that stands behind the mixer: what each kind offers, and all kinds by name."""

from abc import ABC, abstractmethod
from importlib import import_module
from typing import cast

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from lavagna.modules.steps import Steps

# Name to "module:builder". A builder takes (d_model, hidden, layer_index=, depth=) and returns a `FeedForward`.
FEED_FORWARDS = {
    "swiglu": "mlp:swiglu",
    "geglu": "mlp:geglu",
    "geglu_tanh": "mlp:geglu_tanh",
    "reglu": "mlp:reglu",
    "geglu_tanh_bias": "mlp:geglu_tanh_bias",
    "rwkv4": "channel_mix:rwkv4",
    "rwkv6": "channel_mix:rwkv6",
    "rwkv7": "channel_mix:rwkv7",
}


class FeedForward(nn.Module, ABC):
    """What a block applies to each step by itself, or to a step and what it remembers of those before.

    State is an argument and a result: named tensors, batch first, none where each step stands alone. Weights get their
    values in `reset_parameters`.
    """

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors of an empty state; `dtype` is that of the activations."""
        return {}

    @property
    def last(self) -> Tensor | None:
        """The matrix whose product joins the residual stream; None where `reset_parameters` minds the depth itself."""
        return None

    @abstractmethod
    def reset_parameters(self) -> None:
        """Set every parameter anew."""

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "b t d"], tensors: dict[str, Shaped[Tensor, "..."]], steps: Steps
    ) -> tuple[Float[Tensor, "b t d"], dict[str, Shaped[Tensor, "..."]]]:
        """The mapped steps and the new tensors of the state. `x` at masked steps is finite and otherwise anything."""


def build(name: str, d_model: int, hidden: int, *, layer_index: int = 0, depth: int = 1) -> FeedForward:
    """The feed-forward net of a name, `hidden` channels wide inside, for one place in a model.

    >>> build("swiglu", 32, 96).down.weight.shape
    torch.Size([32, 96])
    """
    module, builder = FEED_FORWARDS[name].split(":")
    made = getattr(import_module(f"lavagna.modules.{module}"), builder)
    return cast(FeedForward, made(d_model, hidden, layer_index=layer_index, depth=depth))
