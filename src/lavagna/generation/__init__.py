"""New text from a model: a prompt at once, then a step a token."""

from lavagna.generation.generate import Generated, generate
from lavagna.generation.stream import stream

__all__ = ["Generated", "generate", "stream"]
