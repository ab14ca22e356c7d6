"""Qwen3-Next of transformers, with dense feed-forward nets: the same logits, also where transformers' own are wrong."""

import dataclasses

import pytest
import torch
from safetensors.torch import load_file, save_file

import lavagna as lv
from checkpoints.formats.comparison import (
    damages,
    distance,
    logits,
    of_transformers,
    reads_padding,
    rewritten,
    round_trip_is_exact,
    same_model,
    saved,
)
from checkpoints.formats.sizes import QWEN
from checkpoints.formats.written import HYBRID, refused_for, written_for

SIZES = QWEN | {"num_experts": 0}
VARIANTS = {
    "four layers": {},
    "other": {
        "num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "full_attention"],
        "tie_word_embeddings": True,
        "attention_bias": True,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 2,
        "linear_conv_kernel_dim": 3,
        "rms_norm_eps": 1e-3,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
        # Experts in no layer, since layer 1 is spared.
        "num_experts": 4,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [0, 1, 2],
    },
}


def build(transformers, **changed):
    return transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**SIZES | changed))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_theirs(transformers, variant, tmp_path):
    same_model(build(transformers, **VARIANTS[variant]), tmp_path)


def test_theirs_reads_padding_in_the_middle(transformers, tmp_path):
    model = build(transformers)
    assert reads_padding(saved(model, tmp_path), of_transformers(model), "middle")


def test_a_file_in_bfloat16_computes_in_float32_and_comes_back(transformers, tmp_path):
    model = build(transformers)
    saved(model, tmp_path)
    narrow = {name: x.bfloat16() for name, x in load_file(tmp_path / "model.safetensors").items()}
    save_file(narrow, tmp_path / "model.safetensors", {"format": "pt"})
    model.load_state_dict({name: x.float() for name, x in narrow.items()})
    ids = torch.randint(50, (2, 20))
    ours = lv.load(tmp_path, dtype=torch.float32)[0]
    assert distance(logits(ours, ids)[0], of_transformers(model)(ids)[0]) < 1e-4
    assert lv.load(tmp_path)[0].embedding.weight.dtype == torch.bfloat16
    round_trip_is_exact(tmp_path)


def test_a_configuration_of_older_versions_says_the_same(transformers, tmp_path):
    model = build(transformers, rope_parameters={"rope_type": "default", "rope_theta": 100.0})
    old = rewritten(
        saved(model, tmp_path),
        rope_parameters="gone",
        layer_types="gone",
        rope_theta=100.0,
        rope_scaling=None,
        partial_rotary_factor=0.25,
        full_attention_interval=4,
    )
    ids = torch.randint(50, (2, 9))
    assert distance(logits(lv.load(old)[0], ids)[0], of_transformers(model)(ids)[0]) < 1e-4


def test_heads_for_further_tokens_are_kept_aside(transformers, tmp_path):
    folder = saved(build(transformers), tmp_path)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"mtp.fc.weight": torch.zeros(2, 2)}, folder / "model.safetensors", {"format": "pt"})
    assert lv.load(folder)[0].config.depth == 4
    round_trip_is_exact(folder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_experts": 8}, r"looks like qwen3_next.*mixture of experts \(layer 0\)"),
        ({"num_experts": 8, "mlp_only_layers": [0, 1, 2]}, r"mixture of experts \(layer 3\)"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "of the kind 'yarn'; read is 'default'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types are.*linear_attention and full_attention are read"),
        ({"num_attention_heads": "gone"}, "has no 'num_attention_heads'"),
    ],
)
def test_another_model_is_refused_by_name(transformers, tmp_path, changed, message):
    folder = rewritten(saved(build(transformers), tmp_path), **changed)
    with pytest.raises(ValueError, match=message):
        lv.load(folder)


def test_damages_are_named(transformers, tmp_path):
    damages(saved(build(transformers), tmp_path / "whole"), "qwen3_next", tmp_path)


OURS = dataclasses.replace(
    HYBRID,
    options={
        "gated_delta_net": {"norm_eps": 1e-6},
        "softmax_attention": {"qk_norm": "zero_centered_head", "gate": True, "norm_eps": 1e-6},
    },
    block={"norm": "zero_centered_rms", "mlp_width": 40},
)


def test_a_model_of_ours_is_written_as_theirs(transformers, tmp_path):
    written_for(OURS, "qwen3_next", transformers.Qwen3NextForCausalLM, tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"options": {**OURS.options, "softmax_attention": {"window": 5}}}, "sees all tokens.*the last 5"),
        ({"options": {**OURS.options, "softmax_attention": {"gate": True, "norm_eps": 1e-6}}}, "q_norm.weight"),
        ({"options": {"gated_delta_net": {"conv_size": 0}}}, "have convolutions"),
        ({"block": {"mlp_width": 40}}, "norm='rms'"),
        ({"logit_cap": 30.0}, "logit_cap is 30.0, there None"),
        (
            {"layer": "gla", "options": {}},
            "holds layers of gated_delta_net and softmax_attention, but this model's are gla",
        ),
    ],
)
def test_another_model_of_ours_is_refused(changed, said):
    refused_for(OURS, "qwen3_next", said, **changed)
