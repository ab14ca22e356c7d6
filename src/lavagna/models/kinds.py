"""The kinds of models there are: from a configuration to its model, from a name on disk to its configuration."""

from collections.abc import Mapping
from typing import Any

import torch

from lavagna.models.classifier import SequenceClassifier
from lavagna.models.config import ClassifierConfig, ModelConfig
from lavagna.models.language_model import LanguageModel
from lavagna.models.stack import Stack
from lavagna.models.stack_config import StackConfig

KINDS: dict[str, tuple[type[StackConfig], type[Stack]]] = {
    ModelConfig.kind: (ModelConfig, LanguageModel),
    ClassifierConfig.kind: (ClassifierConfig, SequenceClassifier),
}


def build(config: StackConfig) -> Any:
    """A new model of a configuration: `LanguageModel` of a `ModelConfig`, `SequenceClassifier` of its own."""
    return KINDS[config.kind][1](config)


def outline(config: StackConfig) -> Any:
    """A model without memory for its numbers, however large: what a build refuses is refused here."""
    with torch.device("meta"):
        return build(config)


def read_config(kind: str, values: Mapping[str, Any]) -> Any:
    """The configuration of a kind that `to_dict` made plain. Raises ValueError on an unknown kind or what fits none."""
    if kind not in KINDS:
        raise ValueError(f"There is no kind of model called {kind!r}; there are {', '.join(KINDS)}.")
    return KINDS[kind][0].from_dict(values)
