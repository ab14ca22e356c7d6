"""Configurations by size, from one million parameters to 1.3 billion, for any layer."""

from collections.abc import Callable
from typing import NamedTuple

from lavagna.models.config import ModelConfig
from lavagna.models.size import parameters


class _Preset(NamedTuple):
    parameters: int
    d_model: int
    vocab_size: int


# Widths and vocabularies of the papers from 130m on (Mamba, GLA, Gated DeltaNet: 1024 at 340m, 2048 at 1.3b).
PRESETS = {
    "1m": _Preset(1_000_000, 128, 256),
    "4m": _Preset(4_000_000, 256, 1024),
    "15m": _Preset(15_000_000, 384, 4096),
    "60m": _Preset(60_000_000, 512, 16384),
    "130m": _Preset(130_000_000, 768, 32000),
    "340m": _Preset(340_000_000, 1024, 32000),
    "1.3b": _Preset(1_300_000_000, 2048, 32000),
}


def preset(size: str, layer: str | list[str], *, vocab_size: int | None = None) -> ModelConfig:
    """The configuration of a size for a layer or a hybrid.

    Widths are fixed; the depth is the one whose parameters come nearest to the size's name with the preset's own
    vocabulary, since blocks differ: a Mamba-2 block, which has no MLP, is half of another. Another `vocab_size` changes
    the embedding alone.

    >>> preset("15m", "gated_delta_net").d_model
    384
    """
    if size not in PRESETS:
        raise ValueError(f"preset: size must be one of {', '.join(PRESETS)}, but came as {size!r}.")
    wanted, d_model, own_vocab = PRESETS[size]
    pattern = len(layer) if isinstance(layer, list) else 1

    def config(depth: int, vocab: int = own_vocab) -> ModelConfig:
        return ModelConfig(layer=layer, d_model=d_model, depth=depth, vocab_size=vocab)

    depth = nearest_depth(config, wanted, pattern)
    return config(depth, own_vocab if vocab_size is None else vocab_size)


def nearest_depth(config: Callable[[int], ModelConfig], wanted: int, pattern: int = 1) -> int:
    """The depth whose model's parameters come nearest to those wanted; `pattern` is how many layers repeat."""
    # Parameters are a straight line over depth but for the place where the pattern is cut.
    one, two = parameters(config(pattern)), parameters(config(2 * pattern))
    guess = pattern + round((wanted - one) / (two - one) * pattern)
    near = range(max(pattern, guess - pattern), max(pattern, guess + pattern) + 1)
    return min(near, key=lambda depth: abs(parameters(config(depth)) - wanted))
