"""Every architecture by name. A new one is a file beside this one and a line here."""

import inspect
from importlib import import_module
from typing import Any, cast

from lavagna.layers.layer import Layer

LAYERS: dict[str, str | type[Layer]] = {
    "linear_attention": "linear_attention:LinearAttention",
    "retention": "retention:Retention",
    "gla": "gla:GLA",
    "fast_weight": "fast_weight:FastWeight",
    "delta_net": "delta_net:DeltaNet",
    "gated_delta_net": "gated_delta_net:GatedDeltaNet",
    "kda": "kda:KDA",
    "delta_product": "delta_product:DeltaProduct",
    "longhorn": "longhorn:Longhorn",
    "mlstm": "mlstm:MLSTM",
    "slstm": "slstm:SLSTM",
    "rwkv4": "rwkv4:RWKV4",
    "rwkv5": "rwkv5:RWKV5",
    "rwkv6": "rwkv6:RWKV6",
    "rwkv7": "rwkv7:RWKV7",
    "lssl": "lssl:LSSL",
    "s4": "s4:S4",
    "dss": "dss:DSS",
    "s4d": "s4d:S4D",
    "s5": "s5:S5",
    "h3": "h3:H3",
    "hyena": "hyena:Hyena",
    "mamba": "mamba:Mamba",
    "mamba2": "mamba2:Mamba2",
    "mamba3": "mamba3:Mamba3",
    "rg_lru": "rg_lru:RGLRU",
    "softmax_attention": "softmax_attention:SoftmaxAttention",
    "lstm": "lstm:LSTM",
}


def names() -> list[str]:
    """The name of every architecture, baselines included."""
    return list(LAYERS)


def layer_class(name: str) -> type[Layer]:
    """The class of a name, imported when first asked for. Raises ValueError on an unknown name."""
    if name not in LAYERS:
        raise ValueError(f"layers: there is no layer {name!r}. Use one of {', '.join(LAYERS)}.")
    entry = LAYERS[name]
    if not isinstance(entry, str):
        return entry
    module, found = entry.split(":")
    return cast(type[Layer], getattr(import_module(f"lavagna.layers.{module}"), found))


def register(layer: type[Layer]) -> type[Layer]:
    """Make a layer of one's own known by its `name`, to `build`, models and the command's checks; a class decorator.

    Raises ValueError where the name is taken by another class.
    """
    taken = LAYERS.get(layer.name)
    if taken is not None and taken is not layer:
        raise ValueError(f"layers: the name {layer.name!r} is taken. Give {layer.__name__} another `name`.")
    LAYERS[layer.name] = layer
    return layer


def options(name: str) -> dict[str, Any]:
    """The options that a layer takes, each with its default."""
    parameters = inspect.signature(layer_class(name)).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


def build(name: str, d_model: int, **chosen: Any) -> Layer:
    """A new layer of width `d_model`, its parameters set as its paper says. Other options are the layer's own.

    Raises ValueError on an unknown name or sizes that don't fit, TypeError on an unknown option; both list the legal.

    >>> layer = build("linear_attention", 32, heads=2, feature_map="relu")
    >>> import torch
    >>> y, state = layer(torch.randn(1, 5, 32))
    >>> state.tokens_seen
    tensor([5])
    """
    legal = options(name)
    unknown = [option for option in chosen if option not in legal]
    if unknown:
        raise TypeError(f"{name}: there is no option {', '.join(unknown)}. Use any of {', '.join(legal)}.")
    return layer_class(name)(d_model, **chosen)
