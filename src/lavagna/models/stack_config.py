"""What the blocks of a model are made of: a frozen record that prints, compares and goes through JSON."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn, Self, cast

import torch

from lavagna.layers import registry
from lavagna.models import surroundings


class Options(dict):
    """A dict that can't be changed and so can be hashed; it prints, compares and goes through JSON as a dict does."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        super().__init__({key: _frozen(value) for key, value in items.items()})

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("options can't be changed: make a new config with dataclasses.replace(config, options={...}).")

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
class StackConfig:
    """The sizes and choices that every model has, whatever goes in and comes out.

    - layer: the name of an architecture, or several: a hybrid. Several names are a pattern that repeats from the first
      block to the last and is cut at `depth`: `["gla", "gla", "softmax_attention"]` at depth 4 is gla, gla,
      softmax_attention, gla.
    - options: the layer's options; for a hybrid either options that all its layers take, or name -> options.
    - mlp_factor: width of each block's feed-forward net as a multiple of `d_model`, 0 for none. None takes the paper's:
      a SwiGLU of 8/3 mostly, RWKV's channel mix, none where the paper's block is the mixer alone (Mamba-2).
    - block: what else stands around the mixer, where it is not the paper's; as `options`, for all layers or by name:
      "norm" ("rms", "layer", "zero_centered_rms"), "norm_place" ("pre", or "post": behind each half instead of before
      it), "mlp" (a name in `FEED_FORWARDS`, or None) and "mlp_width", exact.
    - dropout: the share of the numbers of each branch that training sets to zero before they join the stream.

    A subclass is one kind of model: it names its `kind`, adds fields, and lists those that are counts in `counts`.

    Raises ValueError on sizes that don't fit and on an unknown layer, TypeError on an option that the layer lacks.
    """

    layer: str | tuple[str, ...] | list[str]
    d_model: int
    depth: int
    options: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    mlp_factor: float | None = field(default=None, kw_only=True)
    block: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    norm_eps: float = field(default=1e-5, kw_only=True)
    dropout: float = field(default=0.0, kw_only=True)

    kind: ClassVar[str]
    counts: ClassVar[tuple[str, ...]] = ("d_model", "depth")

    def __post_init__(self) -> None:
        object.__setattr__(self, "layer", tuple(self.layer) if isinstance(self.layer, list) else self.layer)
        for name in self.counts:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise self.refusal(f"{name} must be an int >= 1, but came as {value!r}.")
        self._check_numbers()
        self._check_layers()
        for name in ("options", "block"):
            if not isinstance(getattr(self, name), Mapping):
                raise self.refusal(f"{name} must be a dict, but came as {getattr(self, name)!r}.")
            object.__setattr__(self, name, Options(getattr(self, name)))
        self._check_options()

    @property
    def layers(self) -> tuple[str, ...]:
        """The name of every block's layer, first to last."""
        return tuple(self._pattern[i % len(self._pattern)] for i in range(self.depth))

    def layer_options(self, name: str) -> dict[str, Any]:
        """The options that one of the layers gets."""
        return dict(self._of(self.options, name))

    def block_choices(self, name: str) -> dict[str, Any]:
        """What is chosen for the blocks of one of the layers; the rest is the paper's."""
        return dict(self._of(self.block, name))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, all of them, defaults too."""
        return json.loads(json.dumps({f.name: getattr(self, f.name) for f in dataclasses.fields(self)}))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`. Raises ValueError on keys that no field has, or that are missing."""
        known = {f.name: f for f in dataclasses.fields(cls)}
        unknown = [key for key in values if key not in known]
        if unknown:
            raise ValueError(f"{cls.__name__}: unknown keys {', '.join(unknown)}. It has {', '.join(known)}.")
        without = (dataclasses.MISSING, dataclasses.MISSING)
        needed = [name for name, f in known.items() if (f.default, f.default_factory) == without]
        missing = [name for name in needed if name not in values]
        if missing:
            raise ValueError(
                f"{cls.__name__}: {', '.join(missing)} missing. Give {', '.join(needed[:-1])} and {needed[-1]}."
            )
        return cls(**values)

    def refusal(self, text: str) -> ValueError:
        """An error that names this config."""
        return ValueError(f"{type(self).__name__}: {text}")

    @property
    def _pattern(self) -> tuple[str, ...]:
        """The layers that repeat; each is one of a block's, since there are never more of them than blocks."""
        return (self.layer,) if isinstance(self.layer, str) else tuple(self.layer)

    def _of(self, given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        """What is given for one layer: by its name, or for all alike."""
        by_layer = given and all(key in self._pattern and isinstance(value, Mapping) for key, value in given.items())
        return given.get(name, {}) if by_layer else given

    def _check_numbers(self) -> None:
        for name in ("mlp_factor", "norm_eps", "dropout"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                raise self.refusal(f"{name} must be a number, but came as {value!r}.")
        if self.mlp_factor is not None and not 0 <= self.mlp_factor <= sys.float_info.max:
            raise self.refusal(f"mlp_factor must be 0, positive or None, but came as {self.mlp_factor!r}.")
        if self.norm_eps is None or not 0 < self.norm_eps <= sys.float_info.max:
            raise self.refusal(f"norm_eps must be positive, but came as {self.norm_eps!r}.")
        if self.dropout is None or not 0 <= self.dropout < 1:
            raise self.refusal(f"dropout must be from 0 to below 1, but came as {self.dropout!r}.")

    def _check_layers(self) -> None:
        pattern = (self.layer,) if isinstance(self.layer, str) else self.layer
        if not isinstance(pattern, tuple) or not pattern or len(pattern) > self.depth:
            raise self.refusal(f"layer must be a name or 1 to depth = {self.depth} names, but came as {self.layer!r}.")
        unknown = [name for name in pattern if name not in registry.names()]
        if unknown:
            raise self.refusal(f"unknown layer {unknown[0]!r}. Known are {', '.join(registry.names())}.")

    def _check_options(self) -> None:
        # Built without memory, so that whatever a layer refuses is refused here, before anything is allocated.
        with torch.device("meta"):
            built = {
                name: registry.build(name, self.d_model, **self.layer_options(name))
                for name in dict.fromkeys(self._pattern)
            }
        for name, mixer in built.items():
            try:
                surroundings.refuse(self.block_choices(name))
                surroundings.surroundings(mixer, self.mlp_factor, self.block_choices(name))
            except ValueError as error:
                raise self.refusal(str(error)) from None
