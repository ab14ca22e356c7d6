"""What a foreign format is: how it is known, what model it describes, and how its tensors become ours."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, TypeVar

import torch

from lavagna.checkpoints.rules import Rule
from lavagna.checkpoints.weights import Weights
from lavagna.layers import Layer, registry
from lavagna.models import ModelConfig
from lavagna.models.surroundings import Surroundings, surroundings

L = TypeVar("L", bound=Layer)
Config = Mapping[str, Any]


class Format(ABC):
    """A way in which others write down a model. One subclass a file, one line in `formats/__init__.py`.

    `config` is the content of config.json, empty where there is none. Errors of a method that reads it, a missing key
    or a value that no layer takes, become errors that name the file and the format.
    """

    name: ClassVar[str]
    # Their names of the embedding and the head where both may be one matrix: a tied file may have either or both.
    tied: ClassVar[tuple[str, str] | None] = None
    # Whether a file that is given alone is read with the config.json beside it.
    beside: ClassVar[bool] = False
    # What the file is called that a model without a file of its own is written to.
    file: ClassVar[str] = "model.safetensors"

    @abstractmethod
    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        """Whether a config and the names of a file's tensors are of this format. Never by the file's name."""

    def described(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Config:
        """What stands for the config of files that have none; the other methods get it, and the way back keeps it."""
        return config

    @abstractmethod
    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        """Our configuration of the model that is described.

        What a config leaves out is what the original's own class of it has by default, or what the shapes tell; where
        that would be a guess, such as how many heads there are, the key is read without a default, and so required.
        """

    @abstractmethod
    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        """How each parameter of ours is made. Where the embedding is tied, the head has no rule."""

    @abstractmethod
    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        """The content of a config.json that describes a model of ours; empty where the format has none.

        For models that came from elsewhere: one that came from this format keeps its own. The model has no layers but
        those that are `held`. Raises ValueError where the format can't hold it.
        """

    def held(self) -> tuple[str, ...]:
        """Those layers of ours that it holds, alone or mixed; empty where `foreign_config` finds that out by itself."""
        return ()

    def title(self, model_config: ModelConfig) -> str:
        """What errors call the format of a model's file: its name, and the version where it has several."""
        return self.name

    def faults(self, weights: Weights) -> list[str]:
        """What the numbers of a file say against its being a model of ours, in sentences. For few, small tensors."""
        return []

    def unused(self, names: Collection[str]) -> set[str]:
        """Tensors of a file that the model does without. They are kept for the way back."""
        return set()


def vocabulary(size: int, rows: int) -> dict[str, Any]:
    """The fields of a `ModelConfig` for a vocabulary whose matrices have more rows than there are tokens."""
    if not isinstance(size, int):
        raise ValueError(f"Its vocabulary must be an int >= 1, but came as {size!r}.")
    return {"vocab_size": size, "vocab_multiple": rows if rows > size else 1}


def frame_config(model_config: ModelConfig) -> dict[str, Any]:
    """What nearly every configuration calls a model's sizes in the same words."""
    return {
        "vocab_size": model_config.vocab_rows,
        "hidden_size": model_config.d_model,
        "num_hidden_layers": model_config.depth,
        "tie_word_embeddings": model_config.tie_embeddings,
    }


def refuse_other(config: Config, key: str, *read: Any) -> None:
    """Raises ValueError where a key is there and has another value than those that are read."""
    if key in config and config[key] not in read:
        raise ValueError(f"Its {key} is {config[key]!r}; read is {' or '.join(map(repr, read))}.")


def built(config: ModelConfig, kind: type[L]) -> L:
    """One of a model's layers, without memory: it knows the sizes that the options leave open."""
    with torch.device("meta"):
        layer = registry.build(kind.name, config.d_model, **config.layer_options(kind.name))
    assert isinstance(layer, kind)
    return layer


def around(config: ModelConfig, name: str) -> Surroundings:
    """What stands around the mixer in the blocks of one of a model's layers."""
    return surroundings(built(config, registry.layer_class(name)), config.mlp_factor, config.block_choices(name))
