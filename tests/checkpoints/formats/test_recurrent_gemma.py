"""RecurrentGemma of transformers: the same logits, also where transformers' own are wrong."""

import dataclasses

import pytest
import torch

import lavagna as lv
from checkpoints.formats.comparison import (
    damages,
    distance,
    logits,
    of_transformers,
    reads_on,
    reads_padding,
    rewritten,
    same_model,
    saved,
)
from checkpoints.formats.sizes import DECODER
from checkpoints.formats.written import HYBRID, refused_for, written_for

SIZES = DECODER | {
    "hidden_size": 40,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 5,
    "num_key_value_heads": 1,
    "attention_window_size": 7,
}
VARIANTS = {
    "as published": {},
    "other": {
        "block_types": ["attention", "recurrent"],
        "num_hidden_layers": 2,
        "lru_width": 60,
        "conv1d_width": 3,
        "attention_bias": True,
        "num_key_value_heads": 5,
        "tie_word_embeddings": False,
        "logits_soft_cap": 5.0,
        "attention_window_size": 100,
    },
}


def build(transformers, **changed):
    return transformers.RecurrentGemmaForCausalLM(transformers.RecurrentGemmaConfig(**SIZES | changed))


@pytest.fixture
def pair(transformers, tmp_path):
    """One model, the folder with ours and theirs, and two texts."""
    model = build(transformers)
    return saved(model, tmp_path), model, torch.randint(1, 50, (2, 23))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_theirs(transformers, variant, tmp_path):
    same_model(build(transformers, **VARIANTS[variant]), tmp_path, steps=False, cut=False, padding=False)


def theirs_in_pieces(transformers, model, ids, sizes):
    """Their logits with the one cache that they return nothing of; the rest of the state is in the modules."""
    cache, read = transformers.DynamicCache(config=model.config), []
    model._setup_cache(model.config, len(ids), ids.device, torch.float32)
    with torch.no_grad():
        for piece in ids.split(sizes, 1):
            read.append(model(piece, use_cache=True, cache=cache).logits)
    return torch.cat(read, 1)


def test_single_steps_of_theirs_are_ours(transformers, pair):
    (folder, model, ids), sizes = pair, [11] + [1] * 12
    assert distance(reads_on(folder, ids, sizes), theirs_in_pieces(transformers, model, ids, sizes)) < 1e-4


def test_theirs_loses_its_window_at_a_cut_and_keeps_its_state_to_itself(transformers, pair):
    folder, model, ids = pair
    whole = of_transformers(model)(ids)[0]
    assert distance(theirs_in_pieces(transformers, model, ids, [11, 12]), whole) > 1e-2
    assert distance(reads_on(folder, ids, [11, 12]), whole) < 1e-4
    with torch.no_grad():
        assert not hasattr(model(ids, use_cache=True), "cache")


@pytest.mark.parametrize("place", ["left", "middle"])
def test_theirs_reads_padding(pair, place):
    assert reads_padding(pair[0], of_transformers(pair[1]), place)


def test_the_scale_of_the_embedding_is_rounded_to_bfloat16(pair):
    # The root of 40 is 6.3246.
    assert lv.load(pair[0])[0].config.embedding_scale == 6.3125


def test_the_state_of_attention_ends_at_its_window(pair):
    state = logits(lv.load(pair[0])[0], pair[2])[1]
    assert state[2].keys.shape == (2, 6, 1, 8)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_activation": "silu"}, "looks like recurrent_gemma.*hidden_activation is 'silu'"),
        ({"block_types": ["recurrent", "mamba"]}, "block_types are .*mamba.*recurrent and attention are read"),
    ],
)
def test_another_model_is_refused_by_name(transformers, tmp_path, changed, message):
    folder = rewritten(saved(build(transformers), tmp_path), **changed)
    with pytest.raises(ValueError, match=message):
        lv.load(folder)


def test_damages_are_named(transformers, tmp_path):
    damages(saved(build(transformers), tmp_path / "whole"), "recurrent_gemma", tmp_path)


ATTENTION = {"heads": 4, "kv_heads": 1, "window": 7, "out_bias": True, "rotary_fraction": 0.5}
OURS = dataclasses.replace(
    HYBRID,
    layer=["rg_lru", "rg_lru", "softmax_attention"],
    options={"rg_lru": {"heads": 4}, "softmax_attention": ATTENTION},
    block={"norm": "zero_centered_rms", "mlp": "geglu_tanh_bias", "mlp_width": 48},
    tie_embeddings=True,
    # The root of 32 in bfloat16.
    embedding_scale=5.65625,
    logit_cap=30.0,
)


def test_a_model_of_ours_is_written_as_theirs(transformers, tmp_path):
    written_for(OURS, "recurrent_gemma", transformers.RecurrentGemmaForCausalLM, tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"embedding_scale": 1.0}, "embedding_scale is 1.0"),
        ({"logit_cap": None}, "are capped"),
        ({"options": {"rg_lru": {"heads": 4}, "softmax_attention": {**ATTENTION, "window": None}}}, "has a window"),
        ({"options": {"rg_lru": {}, "softmax_attention": ATTENTION}}, "decay_gate.weight"),
        ({"block": {"norm": "zero_centered_rms", "mlp": "geglu_tanh", "mlp_width": 48}}, "gate_up.bias"),
        ({"layer": "rg_lru", "options": {}}, "some of both"),
    ],
)
def test_another_model_of_ours_is_refused(changed, said):
    refused_for(OURS, "recurrent_gemma", said, **changed)
