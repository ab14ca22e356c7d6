"""What is said of a model's size is what a real one takes."""

import pytest
import torch

import lavagna as lv
from lavagna.models.size import flops, kv_cache_bytes, parameters, state_bytes


def config(layer, **changed):
    return lv.ModelConfig(layer=layer, **({"d_model": 32, "depth": 2, "vocab_size": 11} | changed))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layer", lv.layers.names())
def test_parameters_are_those_of_the_model(layer, tied):
    model = lv.LanguageModel(config(layer, tie_embeddings=tied))
    counted = sum(weight.numel() for weight in model.parameters())
    assert parameters(model) == parameters(model.config) == counted


@pytest.mark.parametrize("layer", lv.layers.names())
@pytest.mark.parametrize("tokens", [0, 1, 37])
def test_state_bytes_are_those_of_the_state(layer, tokens, device):
    model = lv.LanguageModel(config(layer)).to(device)
    state = model(torch.zeros(1, tokens, dtype=torch.int64, device=device)).state
    assert state_bytes(model, tokens) == state.nbytes


def test_a_classifier_costs_what_its_blocks_and_its_encoder_do(device):
    model = lv.SequenceClassifier(lv.ClassifierConfig("gla", 32, 2, classes=5, features=3)).to(device)
    assert parameters(model) == sum(weight.numel() for weight in model.parameters())
    assert state_bytes(model) == model(torch.zeros(1, 4, 3, device=device)).state.nbytes
    # The language model has a head of 11 rows at every step, the classifier an encoder of 3 and 32 sums.
    assert flops(model) == flops(config("gla")) - 2 * 32 * 11 + 2 * 32 * 3 + 4 * 32


def test_a_model_that_reads_both_ways_has_no_bytes_of_state():
    options = {"bidirectional": True, "d_state": 8}
    assert state_bytes(lv.ClassifierConfig("s4d", 32, 2, classes=5, features=3, options=options)) == 0


def test_flops_of_linear_attention_are_those_of_the_formula():
    one = config("linear_attention", depth=1, options={"heads": 2})
    d, hidden, vocab = 32, 96, 11
    matrices = 4 * d * d + 3 * d * hidden + vocab * d
    assert flops(one) == flops(one, 500) == 2 * matrices + 4 * d * d // 2


def test_an_untied_head_costs_no_more_than_a_tied_one():
    assert flops(config("gla")) == flops(config("gla", tie_embeddings=False))


def test_softmax_attention_costs_more_with_every_token():
    attention = config("softmax_attention", depth=1)
    assert flops(attention, 101) - flops(attention, 100) == 2 * 2 * 32


def test_a_window_bounds_what_attention_holds(device):
    model = lv.LanguageModel(config("softmax_attention", options={"window": 5})).to(device)
    for tokens in (0, 3, 4, 5, 30):
        state = model(torch.zeros(1, tokens, dtype=torch.int64, device=device)).state
        assert state_bytes(model, tokens) == state.nbytes


def test_heads_that_share_keys_save_memory_but_no_arithmetic():
    alone, shared = (config("softmax_attention", options={"heads": 4, "kv_heads": n}, depth=1) for n in (4, 1))
    assert state_bytes(alone, 10) - 8 == 4 * (state_bytes(shared, 10) - 8)
    assert flops(alone, 11) - flops(alone, 10) == flops(shared, 11) - flops(shared, 10)


def test_a_cache_of_keys_and_values_is_what_attention_of_the_same_width_keeps():
    config = lv.ModelConfig("softmax_attention", 32, 3, 256)
    dtype = torch.bfloat16
    state = state_bytes(config, 100, dtype=dtype)
    assert kv_cache_bytes(config, 100, dtype=dtype) == 2 * 3 * 32 * 100 * 2
    # Beside it only the count of tokens.
    assert 0 <= state - kv_cache_bytes(config, 100, dtype=dtype) <= 3 * 8
