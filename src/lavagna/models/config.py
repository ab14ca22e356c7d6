"""What each kind of model is made of, and by which name its kind is written down."""

import sys
from dataclasses import dataclass
from typing import ClassVar

from lavagna.models.stack_config import StackConfig

POOLINGS = ("mean", "last", "max")


@dataclass(frozen=True)
class ModelConfig(StackConfig):
    """The sizes and choices of a language model: those of `StackConfig`, and

    - tie_embeddings: read the logits with the embedding instead of with a matrix of its own.
    - vocab_multiple: rows of the embedding are `vocab_size` rounded up to a multiple of this. Rows above `vocab_size`
      are never generated.
    - embedding_norm: a norm, of the blocks' kind, behind the embedding; None takes the paper's (RWKV has one).
    - embedding_scale: what the embedding is multiplied by, sqrt(d_model) in RetNet and Gemma.
    - logit_cap: logits become `cap tanh(logits / cap)` (Gemma 30, xLSTM-7B 30); None leaves them.
    - head_bias: a bias on the logits.

    >>> config = ModelConfig(layer="linear_attention", d_model=64, depth=2, vocab_size=256)
    >>> ModelConfig.from_dict(config.to_dict()) == config
    True
    """

    vocab_size: int
    tie_embeddings: bool = True
    vocab_multiple: int = 1
    embedding_norm: bool | None = None
    embedding_scale: float = 1.0
    logit_cap: float | None = None
    head_bias: bool = False

    kind: ClassVar[str] = "language_model"
    counts: ClassVar[tuple[str, ...]] = (*StackConfig.counts, "vocab_size", "vocab_multiple")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("tie_embeddings", "head_bias", "embedding_norm"):
            given = getattr(self, name)
            if not isinstance(given, bool) and not (name == "embedding_norm" and given is None):
                raise self.refusal(f"{name} must be True or False, but came as {given!r}.")
        for name in ("embedding_scale", "logit_cap"):
            given = getattr(self, name)
            if name == "logit_cap" and given is None:
                continue
            if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= sys.float_info.max:
                raise self.refusal(f"{name} must be a positive number, but came as {given!r}.")

    @property
    def vocab_rows(self) -> int:
        """Rows of the embedding, and so the last axis of the logits: `vocab_size` rounded up."""
        return -(-self.vocab_size // self.vocab_multiple) * self.vocab_multiple


@dataclass(frozen=True)
class ClassifierConfig(StackConfig):
    """The sizes and choices of a sequence classifier: those of `StackConfig`, and

    - classes: how many labels there are, 0 to `classes - 1`.
    - features or vocab_size, one of them: the numbers of each step of a sequence, or the size of the vocabulary that
      its ids are from.
    - pooling: what a sequence is judged by: the "mean" of its steps, the "max" of each channel, or the "last" step.

    >>> config = ClassifierConfig(layer="gla", d_model=64, depth=2, classes=10, features=1)
    >>> ClassifierConfig.from_dict(config.to_dict()) == config
    True
    """

    classes: int
    features: int | None = None
    vocab_size: int | None = None
    pooling: str = "mean"

    kind: ClassVar[str] = "classifier"
    counts: ClassVar[tuple[str, ...]] = (*StackConfig.counts, "classes")

    def __post_init__(self) -> None:
        if (self.features is None) == (self.vocab_size is None):
            raise self.refusal(
                f"give either features or vocab_size, but they came as {self.features!r} and {self.vocab_size!r}."
            )
        size, name = (self.features, "features") if self.vocab_size is None else (self.vocab_size, "vocab_size")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise self.refusal(f"{name} must be an int >= 1, but came as {size!r}.")
        if self.pooling not in POOLINGS:
            raise self.refusal(f"pooling must be one of {', '.join(POOLINGS)}, but came as {self.pooling!r}.")
        super().__post_init__()
