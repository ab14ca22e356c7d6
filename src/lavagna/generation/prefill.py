"""The prompt, read in pieces of bounded size."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from lavagna.models import ClassifierConfig, LanguageModel, ModelConfig
from lavagna.state import ModelState

# Steps a piece: long enough for large products, short enough to bound memory.
PIECE = 1024


def prefill(
    model: LanguageModel,
    ids: Int[Tensor, "b t"],
    state: ModelState | None = None,
    mask: Bool[Tensor, "b t"] | None = None,
    *,
    piece: int = PIECE,
) -> ModelState:
    """The state after the ids that `mask` leaves, without a logit being computed; memory O(b piece), not O(b t)."""
    # A copy, so that what is returned where there are no ids is not the very state that was given.
    past = model.initial_state(len(ids)) if state is None else state.clone()
    for start in range(0, ids.shape[1], piece):
        part = slice(start, start + piece)
        _, past = model.hidden(ids[:, part], past, mask=None if mask is None else mask[:, part])
    return past


def check_model(call: str, model: object) -> None:
    """Raise ValueError where a model is none that writes text; what wraps a language model is one."""
    kind = getattr(getattr(model, "config", None), "kind", None)
    if kind != ModelConfig.kind:
        why = ", which judges sequences and writes no text" if kind == ClassifierConfig.kind else ""
        raise ValueError(f"{call}: the model must be a LanguageModel, but came as {type(model).__name__}{why}.")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without gradients and in eval mode, each part of the model back in its own mode afterwards."""
    training = [part for part in model.modules() if part.training]
    for part in training:
        part.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True
