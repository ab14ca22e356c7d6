"""What the options of `lavagna train` say of the model and of its training."""

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from lavagna.models import ClassifierConfig, StackConfig, preset
from lavagna.models.kinds import KINDS, read_config
from lavagna.training import TrainConfig

LAYER = "gated_delta_net"
PRESET = "1m"
# There are fewer labeled sequences than tokens of text, and a preset is sized for text.
CLASSIFIER_WIDTH, CLASSIFIER_DEPTH = 64, 4
MODEL_OPTIONS = ("d_model", "depth", "mlp_factor", "dropout", "pooling")
_WORDS = {"true": True, "false": False, "none": None, "null": None}


def chosen_model(
    given: Mapping[str, Any], kind: str, ends: Mapping[str, int], stored: Mapping[str, Any] | None
) -> StackConfig:
    """The model that the options ask for; what they leave open is as `stored`, the model of the run, or the preset's.

    `ends` are the sizes that the data decides: what goes in and what comes out.

    Raises `ValueError` on what no model can be made of, an option that the layer lacks included.
    """
    values = dict(stored or {})
    layer = _pattern(given["layer"]) if "layer" in given else values.get("layer", LAYER)
    if stored is None or "preset" in given:
        values |= _sizes(given.get("preset"), kind, layer)
    own = {field.name for field in dataclasses.fields(KINDS[kind][0])}
    values |= {name: given[name] for name in MODEL_OPTIONS if name in given and name in own}
    if "option" in given:
        values["options"] = parse_options(given["option"], layer)
    try:
        return read_config(kind, values | {"layer": layer, **ends})
    except TypeError as error:
        raise ValueError(str(error)) from None


def _sizes(size: str | None, kind: str, layer: str | list[str]) -> dict[str, Any]:
    """What a model has where the options leave it open: of a preset, or a classifier's own small sizes."""
    if size is None and kind == ClassifierConfig.kind:
        pattern = [layer] if isinstance(layer, str) else layer
        return {"d_model": CLASSIFIER_WIDTH, "depth": max(CLASSIFIER_DEPTH, len(pattern))}
    sizes = preset(size or PRESET, layer).to_dict()
    shared = {field.name for field in dataclasses.fields(StackConfig)}
    return {name: value for name, value in sizes.items() if name in shared}


def chosen_training(given: Mapping[str, Any], stored: TrainConfig | None) -> TrainConfig:
    """The settings of the training, likewise."""
    names = [field.name for field in dataclasses.fields(TrainConfig)]
    return dataclasses.replace(stored or TrainConfig(), **{name: given[name] for name in names if name in given})


def listed(command: str, option: str, text: str, legal: Sequence[str]) -> list[str]:
    """The names in NAME[,NAME...], each once. Raises ValueError on one that is not legal."""
    found = list(dict.fromkeys(name.strip() for name in text.split(",")))
    unknown = [name for name in found if name not in legal]
    if unknown:
        raise ValueError(f"{command}: there is no {option} {unknown[0]!r}. Use any of {', '.join(legal)}.")
    return found


def parse_options(words: Sequence[str], layer: str | Sequence[str] = ()) -> dict[str, Any]:
    """A layer's options from KEY=VALUE; those of one layer of a hybrid from NAME.KEY=VALUE.

    >>> parse_options(["heads=2", "normalize=true", "feature_map=relu"])
    {'heads': 2, 'normalize': True, 'feature_map': 'relu'}
    >>> parse_options(["gla.heads=2"], ["gla", "delta_net"])
    {'gla': {'heads': 2}}
    """
    found: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise ValueError(f"--option came as {word!r}, but KEY=VALUE was wanted, such as heads=4.")
        name, dot, rest = key.partition(".")
        if dot and name in ([layer] if isinstance(layer, str) else layer):
            found.setdefault(name, {})[rest] = _value(value)
        else:
            found[key] = _value(value)
    return found


def _pattern(layer: str) -> str | list[str]:
    names = [name.strip() for name in layer.split(",")]
    return names[0] if len(names) == 1 else names


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
