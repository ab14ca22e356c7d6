"""flash-linear-attention's RetNet, GLA, DeltaNet, Gated DeltaNet and KDA: the logits of their definition in float64."""

import json

import pytest
import torch

import lavagna as lv
from checkpoints.formats.comparison import damages, round_trip_is_exact, same_logits
from checkpoints.formats.fla_definition import written
from lavagna.checkpoints import formats
from lavagna.checkpoints.plan import plan

FRAME = {"vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "norm_eps": 1e-5, "intermediate_size": 24}
FRAME |= {"hidden_act": "swish", "tie_word_embeddings": False, "attn": None, "use_cache": True, "fuse_swiglu": True}
CONV = {"use_short_conv": True, "conv_size": 4}
KINDS = {
    "retnet": {"num_heads": 2, "expand_k": 1.0, "expand_v": 2.0, "use_output_gate": True, "fuse_norm": True},
    "gla": {"num_heads": 2, "expand_k": 0.5, "expand_v": 1.0, "use_short_conv": False, "conv_size": 4}
    | {"use_output_gate": True, "fuse_norm": True},
    "delta_net": {"num_heads": 2, "expand_k": 1.0, "expand_v": 1.0, "use_gate": False, "allow_neg_eigval": False}
    | CONV,
    "gated_deltanet": {"num_heads": 2, "head_dim": 12, "expand_v": 2.0, "use_gate": True, "allow_neg_eigval": False}
    | CONV,
    "kda": {"num_heads": 2, "head_dim": 12, "expand_v": 1.0, "allow_neg_eigval": False} | CONV,
}
ATTENTION = {"layers": [1], "num_heads": 4, "num_kv_heads": 2, "window_size": 6, "rope_theta": 500.0, "qkv_bias": True}
VARIANTS = {
    "retnet": ("retnet", {}),
    "retnet, shared keys": ("retnet", {"num_heads": 4, "num_kv_heads": 2, "expand_k": 0.5, "fuse_norm": False}),
    "retnet, no gate": ("retnet", {"use_output_gate": False, "expand_v": 1.5, "tie_word_embeddings": True}),
    "gla": ("gla", {}),
    "gla, shared keys": ("gla", {"num_heads": 4, "num_kv_heads": 2, "clamp_min": -0.03, "fuse_norm": False}),
    "gla, no gate": ("gla", {"use_short_conv": True, "use_output_gate": False, "feature_map": "relu", "conv_size": 3}),
    "delta_net": ("delta_net", {}),
    "delta_net, gate": ("delta_net", {"use_gate": True, "allow_neg_eigval": True, "expand_k": 0.75, "expand_v": 0.5}),
    "delta_net, sums": ("delta_net", {"qk_activation": "elu", "qk_norm": "sum", "tie_word_embeddings": True}),
    "gated_deltanet": ("gated_deltanet", {}),
    "gated_deltanet, groups": (
        "gated_deltanet",
        {"num_v_heads": 4, "allow_neg_eigval": True, "expand_v": 0.75, "output_gate_activation": "sigmoid"},
    ),
    "gated_deltanet, no gate": ("gated_deltanet", {"use_gate": False, "use_short_conv": False}),
    "gated_deltanet, attention": ("gated_deltanet", {"attn": ATTENTION}),
    "kda": ("kda", {}),
    "kda, groups": ("kda", {"num_v_heads": 6, "expand_v": 0.5, "allow_neg_eigval": True, "lower_bound": -5.0}),
    "kda, attention": ("kda", {"attn": {"layers": [0], "num_heads": 2}}),
}


def config_of(kind, changed):
    return {"model_type": kind} | FRAME | KINDS[kind] | changed


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_definition(variant, tmp_path):
    theirs = written(config_of(*VARIANTS[variant]), tmp_path)
    # A definition has no state, and so no way to read in pieces that could be wrong.
    same_logits(tmp_path, theirs, length=15, tolerance=1e-9, steps=False, cut=False, padding=False)
    round_trip_is_exact(tmp_path)


@pytest.mark.parametrize("kind", ["gla", "delta_net", "retnet"])
def test_files_from_before_2025_hold_gate_and_up_in_one_matrix(kind, tmp_path):
    theirs = written(config_of(kind, {}), tmp_path, packed=True)
    assert plan(tmp_path).format == f"{kind}_packed"
    same_logits(tmp_path, theirs, length=9, tolerance=1e-9, steps=False, cut=False, padding=False)
    round_trip_is_exact(tmp_path)


def test_the_first_versions_named_heads_and_epsilons_otherwise(tmp_path):
    config = config_of("gla", {})
    written(config, tmp_path, packed=True)
    right = plan(tmp_path).model.config
    old = config | {"num_attention_heads": config["num_heads"], "rms_norm_eps": config["norm_eps"]}
    del old["num_heads"], old["norm_eps"]
    (tmp_path / "config.json").write_text(json.dumps(old))
    assert plan(tmp_path).model.config == right


@pytest.mark.parametrize("kind", KINDS)
def test_damages_are_named(kind, tmp_path):
    written(config_of(kind, {}), tmp_path / "whole")
    damages(tmp_path / "whole", kind, tmp_path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_config_that_describes_a_model_describes_it_again(variant, tmp_path):
    kind, changed = VARIANTS[variant]
    written(config_of(kind, changed), tmp_path)
    made, format = plan(tmp_path), formats.of_name(kind)
    again = format.foreign_config(made.model.config)
    assert again["intermediate_size"] == FRAME["intermediate_size"] and json.loads(json.dumps(again)) == again
    assert format.model_config(again, made.weights.shapes) == made.model.config
    rules = [(rule.ours, rule.theirs) for rule in format.rules(config_of(kind, changed), made.model.config)]
    assert "fuse_norm" in changed or rules == [(r.ours, r.theirs) for r in format.rules(again, made.model.config)]


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("gla", {"feature_map": "sqrelu"}, "feature_map is 'sqrelu'"),
        ("retnet", {"feature_map": "relu"}, "feature_map is 'relu'"),
        ("retnet", {"num_heads": 3}, "num_heads is 3, which does not divide its widths 32 and 64"),
        ("gla", {"hidden_act": "powlu"}, "hidden_act is 'powlu'"),
        ("delta_net", {"use_rope": True}, "use_rope is True"),
        ("delta_net", {"use_beta": False}, "use_beta is False"),
        ("delta_net", {"num_heads": 3}, "num_heads is 3, which does not divide"),
        ("gated_deltanet", {"attnres_block_size": 2}, "attnres_block_size is 2"),
        ("gated_deltanet", {"num_v_heads": 3}, "value_heads must be a multiple of heads"),
        ("kda", {"attn": [ATTENTION, {"layers": [0], "num_heads": 2}]}, "attention of several kinds"),
    ],
)
def test_what_no_layer_of_ours_computes_is_refused_by_name(kind, changed, said, tmp_path):
    written(config_of(kind, {}), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config_of(kind, changed)))
    with pytest.raises(ValueError, match=said) as caught:
        lv.load(tmp_path)
    assert f"looks like {kind}" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "changed", "said"),
    [
        ({"max_beta": 1.5}, {}, "max_beta is 1.5"),
        ({"conv_bias": True}, {}, "biases of convolutions"),
        ({"activation": "gelu"}, {}, "the gate has gelu"),
        ({}, {"logit_cap": 30.0}, "logit_cap"),
        ({}, {"block": {"norm": "layer"}}, "RMS norms"),
        ({"norm_eps": 1e-3}, {}, "one norm_eps"),
    ],
)
def test_what_their_format_cannot_hold_is_refused(options, changed, said):
    config = lv.ModelConfig(**{"layer": "gated_delta_net", "d_model": 32, "depth": 2, "vocab_size": 40} | changed)
    config = lv.ModelConfig.from_dict(config.to_dict() | {"options": options})
    with pytest.raises(ValueError, match=said):
        formats.of_name("gated_deltanet").foreign_config(config)


def test_a_width_that_only_the_tensors_say_is_theirs(tmp_path):
    config = config_of("gla", {})
    written(config, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": None, "hidden_ratio": 4}))
    assert lv.load(tmp_path).model.blocks[0].mlp.down.weight.shape == (32, 24)
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(ValueError, match=r"is \(32, 24\) where the configuration wants \(32, 40\)"):
        lv.load(tmp_path)


def test_decays_stay_wide_in_a_narrow_model(tmp_path):
    written(config_of("kda", {}), tmp_path)
    model, _ = lv.load(tmp_path, dtype=torch.bfloat16)
    mixer = model.blocks[0].mixer
    assert mixer.A_log.dtype == mixer.dt_bias.dtype == torch.float32 and mixer.out.weight.dtype == torch.bfloat16
