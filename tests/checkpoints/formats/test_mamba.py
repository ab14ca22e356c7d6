"""Mamba and Falcon Mamba of transformers: the same logits, also where transformers' own are wrong."""

import pytest
import torch

import lavagna as lv
from checkpoints.formats.comparison import (
    damages,
    distance,
    logits,
    of_transformers,
    reads_padding,
    same_model,
    saved,
    wrong,
)

SIZES = {"vocab_size": 50, "hidden_size": 32, "state_size": 5, "num_hidden_layers": 2, "conv_kernel": 3}
VARIANTS = {
    "plain": {},
    "biased": {"use_bias": True, "use_conv_bias": False, "tie_word_embeddings": False, "expand": 3},
}


@pytest.fixture(params=["mamba", "falcon_mamba"])
def kind(request):
    return request.param


def build(transformers, kind, **changed):
    config, model = {
        "mamba": (transformers.MambaConfig, transformers.MambaForCausalLM),
        "falcon_mamba": (transformers.FalconMambaConfig, transformers.FalconMambaForCausalLM),
    }[kind]
    return model(config(**SIZES, time_step_rank=4, **changed))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_theirs(transformers, kind, variant, tmp_path):
    same_model(build(transformers, kind, **VARIANTS[variant]), tmp_path, cut=False, padding=variant == "plain")


def test_theirs_forgets_before_a_second_part_and_reads_padding_in_the_middle(transformers, kind, tmp_path):
    model = build(transformers, kind)
    folder, theirs = saved(model, tmp_path), of_transformers(model)
    assert wrong(theirs, torch.randint(50, (2, 23)), [11, 12])
    assert reads_padding(folder, theirs, "middle")


def test_theirs_reads_padding_on_the_left_where_projections_have_biases(transformers, kind, tmp_path):
    model = build(transformers, kind, use_bias=True)
    assert reads_padding(saved(model, tmp_path), of_transformers(model), "left")


def test_damages_are_named(transformers, kind, tmp_path):
    damages(saved(build(transformers, kind), tmp_path / "whole"), kind, tmp_path)


def test_a_model_of_ours_is_one_of_theirs_where_they_read_what_is_written(transformers, kind, tmp_path):
    options = {"bias": True, "conv_size": 3, "norm": kind == "falcon_mamba"}
    ours = lv.LanguageModel(lv.ModelConfig("mamba", 32, 2, 50, options=options)).eval()
    lv.save(ours, tmp_path / "ours")
    lv.checkpoints.convert(tmp_path / "ours", tmp_path / "theirs", to=kind)
    model = build(transformers, kind)
    theirs = of_transformers(type(model).from_pretrained(tmp_path / "theirs").eval())
    ids = torch.randint(50, (2, 17))
    assert distance(logits(ours, ids)[0], theirs(ids)[0]) < 1e-4
