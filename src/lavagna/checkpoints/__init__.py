"""Models on disk: a folder of safetensors, config.json and tokenizer.json, there whole or not at all."""

from lavagna.checkpoints.convert import Converted, convert
from lavagna.checkpoints.load import Loaded, load
from lavagna.checkpoints.plan import FORMAT
from lavagna.checkpoints.save import save

__all__ = ["FORMAT", "Converted", "Loaded", "convert", "load", "save"]
