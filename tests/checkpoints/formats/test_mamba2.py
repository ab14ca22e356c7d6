"""Mamba-2 of transformers: the same logits, also where transformers' own are wrong."""

import json

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
    same_model,
    saved,
    wrong,
)

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 5, "num_hidden_layers": 2}
VARIANTS = {
    "plain": {"n_groups": 1},
    "grouped": {"n_groups": 4, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True, "chunk_size": 8},
}


def build(transformers, **changed):
    return transformers.Mamba2ForCausalLM(transformers.Mamba2Config(**SIZES, **changed))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_theirs(transformers, variant, tmp_path):
    same_model(build(transformers, **VARIANTS[variant]), tmp_path, padding=variant == "plain")


def test_theirs_reads_padding_in_the_middle(transformers, tmp_path):
    model = build(transformers, n_groups=2)
    assert reads_padding(saved(model, tmp_path), of_transformers(model), "middle")


def test_theirs_leaves_the_limits_of_step_sizes_out_of_single_steps(transformers, tmp_path):
    model = build(transformers, n_groups=1, time_step_limit=(0.3, 0.4))
    folder, theirs = saved(model, tmp_path), of_transformers(model)
    ids, steps = torch.randint(50, (2, 23)), [11] + [1] * 12
    assert wrong(theirs, ids, steps)
    assert distance(reads_on(folder, ids, steps), theirs(ids)[0]) < 1e-4


def test_theirs_reads_padding_on_the_left_where_projections_have_biases(transformers, tmp_path):
    model = build(transformers, use_bias=True)
    assert reads_padding(saved(model, tmp_path), of_transformers(model), "left")


def test_damages_are_named(transformers, tmp_path):
    damages(saved(build(transformers, n_groups=2), tmp_path / "whole"), "mamba2", tmp_path)


def test_a_model_of_ours_is_one_of_theirs_where_they_read_what_is_written(transformers, tmp_path):
    options = {"heads": 4, "groups": 2, "bias": True, "conv_size": 3}
    ours = lv.LanguageModel(lv.ModelConfig("mamba2", 32, 2, 50, options=options)).eval()
    lv.save(ours, tmp_path / "ours")
    lv.checkpoints.convert(tmp_path / "ours", tmp_path / "theirs", to="mamba2")
    theirs = of_transformers(transformers.Mamba2ForCausalLM.from_pretrained(tmp_path / "theirs").eval())
    ids = torch.randint(50, (2, 17))
    assert distance(logits(ours, ids)[0], theirs(ids)[0]) < 1e-4


def test_a_width_of_heads_is_written_as_theirs_and_must_be_what_is_said(transformers, tmp_path):
    ours = lv.LanguageModel(lv.ModelConfig("mamba2", 32, 1, 50, options={"heads": 4, "head_dim": 8})).eval()
    lv.save(ours, tmp_path / "ours")
    lv.checkpoints.convert(tmp_path / "ours", tmp_path / "theirs", to="mamba2")
    # Theirs refuses another expand.
    theirs = of_transformers(transformers.Mamba2ForCausalLM.from_pretrained(tmp_path / "theirs").eval())
    ids = torch.randint(50, (2, 9))
    assert distance(logits(ours, ids)[0], theirs(ids)[0]) < 1e-4
    file = tmp_path / "theirs" / "config.json"
    config = json.loads(file.read_text())
    for changed, said in (
        ({"expand": 3}, r"Its num_heads \* head_dim is 32, but its hidden_size \* expand is 96"),
        ({"num_hidden_layers": 10**18}, "It has 1000000000000000000 blocks"),
        ({"vocab_size": "50"}, "vocabulary must be an int >= 1, but came as '50'"),
    ):
        file.write_text(json.dumps(config | changed))
        with pytest.raises(ValueError, match=said):
            lv.load(tmp_path / "theirs")
    narrow = lv.LanguageModel(lv.ModelConfig("mamba2", 32, 1, 50, options={"heads": 3, "head_dim": 8}))
    lv.save(narrow, tmp_path / "narrow")
    with pytest.raises(ValueError, match="Its heads are d_model times an int wide, but this model's are 24"):
        lv.checkpoints.convert(tmp_path / "narrow", tmp_path / "new", to="mamba2")
