"""Every sequence model with a fixed-size memory as one recurrence, `S_t = S_{t-1} A_t + v_t k_t^T`, in every form."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lavagna.algebra.transition import (
    Transition,
    diagonal,
    dplr,
    gated_householder,
    householder,
    identity,
    scalar,
)
from lavagna.dispatch import Result, recur
from lavagna.state import ModelState, State, load_state
from lavagna.version import __version__

if TYPE_CHECKING:
    from lavagna import checkpoints, data, generation, layers, lti, models, plots, reproduce, training
    from lavagna.checkpoints import load, save
    from lavagna.generation import generate, stream
    from lavagna.models import ClassifierConfig, LanguageModel, ModelConfig, SequenceClassifier, quantize

# Imported when first asked for, so that importing the package stays quick: the module that holds each name.
_LATER = {
    "ClassifierConfig": "lavagna.models",
    "LanguageModel": "lavagna.models",
    "ModelConfig": "lavagna.models",
    "SequenceClassifier": "lavagna.models",
    "generate": "lavagna.generation",
    "load": "lavagna.checkpoints",
    "quantize": "lavagna.models",
    "save": "lavagna.checkpoints",
    "stream": "lavagna.generation",
}
_ROOMS = ("checkpoints", "data", "generation", "layers", "lti", "models", "plots", "reproduce", "training")

__all__ = [
    "ClassifierConfig",
    "LanguageModel",
    "ModelConfig",
    "ModelState",
    "Result",
    "SequenceClassifier",
    "State",
    "Transition",
    "__version__",
    "checkpoints",
    "data",
    "diagonal",
    "dplr",
    "gated_householder",
    "generate",
    "generation",
    "householder",
    "identity",
    "layers",
    "load",
    "load_state",
    "lti",
    "models",
    "plots",
    "quantize",
    "recur",
    "reproduce",
    "save",
    "scalar",
    "stream",
    "training",
]


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    if name in _ROOMS:
        return import_module(f"lavagna.{name}")
    raise AttributeError(f"module 'lavagna' has no attribute {name!r}.")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER, *_ROOMS})
