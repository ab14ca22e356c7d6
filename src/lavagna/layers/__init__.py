"""Architectures: each a sequence mixer with state as argument and result, built by name."""

from lavagna.layers.layer import Layer, Mixed
from lavagna.layers.registry import build, layer_class, names, options, register

__all__ = ["Layer", "Mixed", "build", "layer_class", "names", "options", "register"]
