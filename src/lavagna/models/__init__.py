"""Whole models: vocabulary, depth and residuals around the layers."""

from lavagna.models.config import ModelConfig
from lavagna.models.language_model import LanguageModel, Predicted
from lavagna.models.presets import PRESETS, preset

__all__ = ["PRESETS", "LanguageModel", "ModelConfig", "Predicted", "preset"]
