"""What a model is made of: a frozen record that prints, compares and goes through JSON."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self, cast

import torch

from lavagna.layers import registry


class Options(dict):
    """A dict that can't be changed and so can be hashed; it prints, compares and goes through JSON as a dict does."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__({key: _frozen(value) for key, value in items.items()})

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("options can't be changed: make a new config with dataclasses.replace(config, options={...})")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = cast(Any, _refuse)

    def __hash__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[type[Self], tuple[dict]]:
        return type(self), (dict(self),)


def _frozen(value: object) -> object:
    if isinstance(value, Mapping):
        return Options(value)
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True)
class ModelConfig:
    """The sizes and choices of a language model.

    - layer: the name of an architecture, or several: a hybrid. Several names are a pattern that repeats from the first
      block to the last and is cut at `depth`: `["gla", "gla", "softmax_attention"]` at depth 4 is gla, gla,
      softmax_attention, gla.
    - options: the layer's options; for a hybrid either options that all its layers take, or name -> options.
    - mlp_factor: width of each block's SwiGLU as a multiple of `d_model`, 0 for none. None takes the paper's block:
      8/3, and none where the paper's block is the mixer alone (Mamba-2).
    - tie_embeddings: read the logits with the embedding instead of with a matrix of its own.
    - vocab_multiple: rows of the embedding are `vocab_size` rounded up to a multiple of this. Rows above `vocab_size`
      are never generated.

    Raises ValueError on sizes that don't fit and on an unknown layer, TypeError on an option that the layer lacks.

    >>> config = ModelConfig(layer="linear_attention", d_model=64, depth=2, vocab_size=256)
    >>> ModelConfig.from_dict(config.to_dict()) == config
    True
    """

    layer: str | tuple[str, ...] | list[str]
    d_model: int
    depth: int
    vocab_size: int
    options: Mapping[str, Any] = field(default_factory=dict)
    mlp_factor: float | None = None
    tie_embeddings: bool = True
    norm_eps: float = 1e-5
    vocab_multiple: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer", tuple(self.layer) if isinstance(self.layer, list) else self.layer)
        for name in ("d_model", "depth", "vocab_size", "vocab_multiple"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"ModelConfig: {name} must be an int >= 1, but came as {value!r}.")
        self._check_numbers()
        self._check_layers()
        if not isinstance(self.options, Mapping):
            raise ValueError(f"ModelConfig: options must be a dict, but came as {self.options!r}.")
        object.__setattr__(self, "options", Options(self.options))
        self._check_options()

    @property
    def layers(self) -> tuple[str, ...]:
        """The name of every block's layer, first to last."""
        pattern = (self.layer,) if isinstance(self.layer, str) else tuple(self.layer)
        return tuple(pattern[i % len(pattern)] for i in range(self.depth))

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding, and so the last axis of the logits: `vocab_size` rounded up."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple

    def layer_options(self, name: str) -> dict[str, Any]:
        """The options that one of the layers gets."""
        return dict(self.options[name] if self._by_layer() and name in self.options else self._shared())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, all of them, defaults too."""
        return json.loads(json.dumps({f.name: getattr(self, f.name) for f in dataclasses.fields(self)}))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ModelConfig":
        """The inverse of `to_dict`. Raises ValueError on keys that no field has, or that are missing."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        unknown = [key for key in values if key not in known]
        if unknown:
            raise ValueError(f"ModelConfig: unknown keys {', '.join(unknown)}. It has {', '.join(known)}.")
        missing = [key for key in ("layer", "d_model", "depth", "vocab_size") if key not in values]
        if missing:
            raise ValueError(f"ModelConfig: {', '.join(missing)} missing. Give layer, d_model, depth and vocab_size.")
        return cls(**values)

    def _by_layer(self) -> bool:
        names = set(self.layers)
        return bool(self.options) and all(
            key in names and isinstance(value, Mapping) for key, value in self.options.items()
        )

    def _shared(self) -> Mapping[str, Any]:
        return {} if self._by_layer() else self.options

    def _check_numbers(self) -> None:
        for name in ("mlp_factor", "norm_eps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise ValueError(f"ModelConfig: {name} must be a number, but came as {value!r}.")
        if not isinstance(self.tie_embeddings, bool):
            raise ValueError(f"ModelConfig: tie_embeddings must be True or False, but came as {self.tie_embeddings!r}.")
        if self.mlp_factor is not None and not 0 <= self.mlp_factor < float("inf"):
            raise ValueError(f"ModelConfig: mlp_factor must be 0, positive or None, but came as {self.mlp_factor!r}.")
        if self.norm_eps is None or not 0 < self.norm_eps < float("inf"):
            raise ValueError(f"ModelConfig: norm_eps must be positive, but came as {self.norm_eps!r}.")

    def _check_layers(self) -> None:
        pattern = (self.layer,) if isinstance(self.layer, str) else self.layer
        if not isinstance(pattern, tuple) or not pattern or len(pattern) > self.depth:
            raise ValueError(
                f"ModelConfig: layer must be a name or 1 to depth = {self.depth} names, but came as {self.layer!r}."
            )
        unknown = [name for name in pattern if name not in registry.names()]
        if unknown:
            raise ValueError(f"ModelConfig: unknown layer {unknown[0]!r}. Known are {', '.join(registry.names())}.")

    def _check_options(self) -> None:
        # Built without memory, so that whatever a layer refuses is refused here, before anything is allocated.
        with torch.device("meta"):
            for name in dict.fromkeys(self.layers):
                registry.build(name, self.d_model, **self.layer_options(name))
