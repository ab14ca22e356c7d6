"""Time and memory of one more token, early and late in a text."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from lavagna.bench.clock import Job, medians, one_thread
from lavagna.layers import registry
from lavagna.models import LanguageModel, ModelConfig, preset
from lavagna.state import ModelState

EARLY, LATE = 100, 10_000
PIECE = 1024


class Row(NamedTuple):
    """One token's median time and the state's bytes, after `at_token` tokens, and both over those of the first row."""

    layer: str
    at_token: int
    time_per_token_ms: float
    time_ratio: float
    state_bytes: int
    state_ratio: float


def decoding_rows(
    layers: Sequence[str], *, at: Sequence[int] = (EARLY, LATE), size: str = "1m", tokens: int = 20, rounds: int = 11
) -> Iterator[Row]:
    """Time `tokens` tokens of a model of each layer, after few and after many others in turn, on one thread."""
    with one_thread(), torch.no_grad():
        for layer in layers:
            torch.manual_seed(0)
            model = LanguageModel(_config(size, layer, max(at) + tokens)).eval()
            ids = torch.randint(model.config.vocab_size, (1, max(at) + tokens))
            states = {str(count): _after(model, ids[:, :count]) for count in at}
            jobs = {name: _decoding(model, ids, state, tokens) for name, state in states.items()}
            times = medians(jobs, rounds=rounds)
            first = next(iter(states))
            for name, state in states.items():
                yield Row(
                    layer=layer,
                    at_token=int(name),
                    time_per_token_ms=1e3 * times[name] / tokens,
                    time_ratio=times[name] / times[first],
                    state_bytes=state.nbytes,
                    state_ratio=state.nbytes / states[first].nbytes,
                )


def _config(size: str, layer: str, length: int) -> ModelConfig:
    config = preset(size, layer)
    bounded = "max_length" in registry.options(layer)
    return replace(config, options={"max_length": length}) if bounded else config


def _after(model: LanguageModel, ids: Tensor) -> ModelState:
    state = model.initial_state(1)
    for piece in ids.split(PIECE, 1):
        _, state = model.hidden(piece, state)
    return state


def _decoding(model: LanguageModel, ids: Tensor, start: ModelState, tokens: int) -> Job:
    def run() -> None:
        state = start
        for t in range(tokens):
            _, state = model(ids[:, t : t + 1], state)

    return run
