"""Text that goes on from a prompt, piece by piece as it is made."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from lavagna.data import AbstractTokenizer
from lavagna.generation.prefill import check_model, evaluating, prefill
from lavagna.generation.sampling import Sampler
from lavagna.generation.stepper import Stepper
from lavagna.generation.text import Reader, Stop, reader
from lavagna.models import LanguageModel
from lavagna.state import ModelState

# Ids of the prompt that a tokenizer other than byte-level sees beside the first new one.
CONTEXT = 8


def stream(
    model: LanguageModel,
    tokenizer: AbstractTokenizer,
    prompt: str,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_p: float | None = None,
    top_k: int | None = None,
    stop: str | Sequence[str] = (),
    seed: int | None = None,
) -> Iterator[str]:
    """Yield the text that follows `prompt`, in pieces of whole characters, of up to `max_new_tokens` tokens.

    The text ends before the first of the strings in `stop`, wherever tokens are cut, and before the tokenizer's end of
    text. Bytes that are no UTF-8, and a character that breaks off at the end, become replacement marks as
    `bytes.decode("utf-8", "replace")` sets them. Ids stay below the tokenizer's and the model's vocabulary. An empty
    prompt starts from the end of text. Each token costs one step; the model's mode is not changed. Weights may change
    between pieces in any way, and hooks and parts: the next piece knows. Other attributes of parts are as they are at
    the call until its end.

    Raises ValueError, at the call itself, on a model that writes no text, on a missing tokenizer, on an empty prompt
    without an end of text to start from, on options out of range and on ids beyond the model's vocabulary.
    """
    check_model("stream", model)
    if tokenizer is None:
        raise ValueError(
            "stream: the tokenizer is None, as `load` gives it where a checkpoint has none. Give one, or use generate, "
            "which takes ids."
        )
    strings = [stop] if isinstance(stop, str) else list(stop)
    if "" in strings:
        raise ValueError("stream: stop holds an empty string, which every text begins with. Leave it out.")
    if not isinstance(max_new_tokens, int) or max_new_tokens < 0:
        raise ValueError(f"stream: max_new_tokens must be an int >= 0, but came as {max_new_tokens!r}.")
    ids = tokenizer.encode(prompt)
    end = getattr(tokenizer, "eos_id", None)
    if not ids and end is None:
        raise ValueError(
            "stream: the prompt is empty and the tokenizer has no end of text to start from. Give some text."
        )
    size = min(model.config.vocab_size, tokenizer.vocab_size)
    sample = Sampler("stream", size=size, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    device = next(model.parameters()).device
    ids = torch.tensor([ids or [end]], dtype=torch.int64, device=device)
    with evaluating(model):
        # The first step is taken here, so that whatever is wrong with the prompt is said at the call.
        logits, state = model(ids[:, -1:], prefill(model, ids[:, :-1]))
    new = _ids(model, logits, state, sample, max_new_tokens)
    return _text(new, reader(tokenizer, before=ids[0, -CONTEXT:].tolist()), Stop(strings), end)


def _ids(model: LanguageModel, logits: Tensor, state: ModelState, sample: Sampler, count: int) -> Iterator[int]:
    """The new ids, one at a time; the step behind the last one is not taken."""
    # Whoever reads the text may train the model meanwhile.
    step = Stepper(model, state, count - 1, watch=True)
    for left in reversed(range(count)):
        new = sample(logits[:, -1])
        yield int(new)
        if left:
            with evaluating(model):
                logits = step(new[:, None])


def _text(ids: Iterator[int], read: Reader, stop: Stop, end: int | None) -> Iterator[str]:
    """The pieces to show, none of them empty."""
    for id in ids:
        if id == end:
            break
        if piece := stop.push(read.push(id)):
            yield piece
        if stop.found:
            return
    if piece := stop.push(read.finish()) + stop.finish():
        yield piece
