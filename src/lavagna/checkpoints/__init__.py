"""Models on disk: a folder of safetensors, config.json and tokenizer.json, there whole or not at all."""

from lavagna.checkpoints.load import Loaded, load
from lavagna.checkpoints.save import FORMAT, save

__all__ = ["FORMAT", "Loaded", "load", "save"]
