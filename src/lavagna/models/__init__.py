"""Whole models: what stands before, between and behind the layers."""

from lavagna.models.classifier import Classified, SequenceClassifier
from lavagna.models.config import ClassifierConfig, ModelConfig
from lavagna.models.language_model import LanguageModel, Predicted
from lavagna.models.presets import PRESETS, preset
from lavagna.models.quantization import quantize
from lavagna.models.stack import Stack
from lavagna.models.stack_config import StackConfig

__all__ = [
    "PRESETS",
    "Classified",
    "ClassifierConfig",
    "LanguageModel",
    "ModelConfig",
    "Predicted",
    "SequenceClassifier",
    "Stack",
    "StackConfig",
    "preset",
    "quantize",
]
