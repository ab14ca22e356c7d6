"""Qwen3.5's language models of transformers: the same logits, also where transformers' own are wrong."""

import dataclasses

import pytest
import torch

import lavagna as lv
from checkpoints.formats.comparison import (
    damages,
    distance,
    of_transformers,
    reads_on,
    reads_padding,
    rewritten,
    same_model,
    saved,
)
from checkpoints.formats.sizes import QWEN
from checkpoints.formats.written import HYBRID, refused_for, written_for

PICTURES = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "num_position_embeddings": 16,
}
LINEAR = {"layer_types": 2 * ["linear_attention"], "num_hidden_layers": 2}


def build(transformers, **changed):
    return transformers.Qwen3_5ForCausalLM(transformers.Qwen3_5TextConfig(**QWEN | changed))


def with_pictures(transformers):
    config = transformers.Qwen3_5Config(text_config=QWEN, vision_config=PICTURES)
    return transformers.Qwen3_5ForConditionalGeneration(config)


@pytest.mark.parametrize("changed", [{}, {"tie_word_embeddings": True, "attention_bias": True}])
def test_logits_are_theirs(transformers, changed, tmp_path):
    same_model(build(transformers, **changed), tmp_path)


def test_the_language_model_beside_one_of_pictures_is_read_and_the_rest_kept(transformers, tmp_path):
    same_model(with_pictures(transformers), tmp_path)


def test_theirs_has_no_state_without_attention(transformers, tmp_path):
    model = build(transformers, **LINEAR)
    folder, ids = saved(model, tmp_path), torch.randint(50, (2, 23))
    with pytest.raises(ValueError), torch.no_grad():
        model(ids, use_cache=True)
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
    assert distance(reads_on(folder, ids, [11, 12]), whole) < 1e-4


def test_theirs_reads_padding_in_the_middle(transformers, tmp_path):
    model = build(transformers)
    assert reads_padding(saved(model, tmp_path), of_transformers(model), "middle")


@pytest.mark.parametrize("kind", ["qwen3_5_moe", "qwen3_5_moe_text"])
def test_a_mixture_of_experts_is_refused_by_name(transformers, kind, tmp_path):
    folder = saved(with_pictures(transformers) if kind == "qwen3_5_moe" else build(transformers), tmp_path)
    with pytest.raises(ValueError, match="looks like qwen3_5.*mixture of experts"):
        lv.load(rewritten(folder, model_type=kind))


def test_damages_are_named(transformers, tmp_path):
    damages(saved(build(transformers), tmp_path / "whole"), "qwen3_5", tmp_path)


def test_a_model_of_ours_is_written_as_theirs(transformers, tmp_path):
    attention = {"qk_norm": "zero_centered_head", "gate": True, "norm_eps": 1e-6, "rotary_fraction": 0.25}
    ours = dataclasses.replace(
        HYBRID,
        options={"gated_delta_net": {"norm_eps": 1e-6}, "softmax_attention": attention},
        block={"norm": "zero_centered_rms", "mlp_width": 40},
    )
    written_for(ours, "qwen3_5", transformers.Qwen3_5ForCausalLM, tmp_path)
    refused_for(ours, "qwen3_5_multimodal", "Use qwen3_5 for a language model alone")
