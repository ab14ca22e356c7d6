"""A token costs the same at the hundredth and at the ten-thousandth."""

import statistics
import time

import pytest
import torch

import lavagna as lv
from lavagna.generation import captured
from lavagna.generation.stepper import Stepper
from lavagna.kernels.cpu.library import library
from sample_layers import GROWING

FIXED = [name for name in lv.layers.names() if name not in GROWING]


def after(model, tokens):
    """The state after so many tokens, read in pieces."""
    return lv.generate(model, torch.zeros(1, tokens + 1, dtype=torch.int64), max_new_tokens=0).state


def build(layer):
    return lv.LanguageModel(lv.ModelConfig(layer=layer, d_model=64, depth=2, vocab_size=32))


@pytest.mark.parametrize("layer", FIXED)
def test_the_state_has_the_same_bytes_after_any_number_of_tokens(layer):
    model = build(layer)
    assert after(model, 0).nbytes == after(model, 100).nbytes == after(model, 3000).nbytes


def test_a_hybrid_grows_by_its_attention_alone():
    model = build(["gla", "softmax_attention"])
    growth = after(model, 300).nbytes - after(model, 200).nbytes
    assert growth == 100 * 2 * 64 * 4


@pytest.mark.slow
@pytest.mark.parametrize("layer", FIXED)
def test_a_token_takes_no_longer_after_ten_thousand_than_after_a_hundred(layer):
    model, times = build(layer), {}
    for tokens in (100, 10_000):
        state = after(model, tokens)
        token, spent = torch.zeros(1, 1, dtype=torch.int64), []
        with torch.inference_mode():
            for _ in range(200):
                start = time.perf_counter()
                _, state = model(token, state)
                spent.append(time.perf_counter() - start)
        times[tokens] = statistics.median(spent)
        assert state.nbytes == after(model, 0).nbytes
    # Measured 0.9 to 1.1; a cost that grew with the text would be near a hundred.
    assert times[10_000] < 2 * times[100]


@pytest.mark.slow
@pytest.mark.skipif(library().functions is None, reason=f"the CPU kernels are {library().level}")
def test_captured_steps_of_a_hybrid_are_quicker_than_the_models_own(monkeypatch):
    model, times = build(["gated_delta_net", "softmax_attention"]).eval(), {}
    state, token = after(model, 500), torch.zeros(1, 1, dtype=torch.int64)
    for worth in (1, 10**9):
        monkeypatch.setattr(captured, "WORTH", worth)
        step, spent = Stepper(model, state, 1000), []
        with torch.inference_mode():
            for _ in range(200):
                start = time.perf_counter()
                step(token)
                spent.append(time.perf_counter() - start)
        times[worth] = statistics.median(spent)
    assert times[1] < times[10**9] / 4, times
