"""A configuration refuses what can't be built, can't be changed, and comes back from JSON as it was."""

import copy
import dataclasses
import json
import pickle

import pytest

import lavagna as lv

SIZES = {"d_model": 32, "depth": 4, "vocab_size": 11}
HYBRID = ["gla", "delta_net", "softmax_attention"]


def config(layer="linear_attention", **changed):
    return lv.ModelConfig(layer=layer, **(SIZES | changed))


def classifier(layer="linear_attention", **changed):
    return lv.ClassifierConfig(layer, 32, 4, **({"classes": 5} | changed))


@pytest.mark.parametrize(
    "example",
    [
        config(),
        config(HYBRID, options={"gla": {"heads": 2}, "delta_net": {"conv_size": 3}}),
        config(HYBRID, block={"gla": {"norm": "layer"}}, embedding_norm=True, embedding_scale=2.0, logit_cap=30.0),
        config("mamba2", options={"dt_limit": [0.0, 0.5]}, mlp_factor=1.5, tie_embeddings=False, vocab_multiple=8),
        classifier(HYBRID, features=2, pooling="max", dropout=0.1),
        classifier(vocab_size=7, options={"heads": 2}),
    ],
    ids=["plain", "hybrid", "ends", "all", "classifier", "classifier of ids"],
)
def test_a_config_comes_back_from_json_repr_copy_and_pickle(example):
    written = json.loads(json.dumps(example.to_dict()))
    others = [
        type(example).from_dict(written),
        eval(repr(example), {"ModelConfig": lv.ModelConfig, "ClassifierConfig": lv.ClassifierConfig}),
        copy.deepcopy(example),
        pickle.loads(pickle.dumps(example)),
        dataclasses.replace(example),
    ]
    assert all(other == example and hash(other) == hash(example) for other in others)


def test_a_pattern_of_layers_repeats_and_is_cut_at_the_depth():
    assert config(HYBRID).layers == ("gla", "delta_net", "softmax_attention", "gla")


def test_a_list_of_one_layer_builds_what_its_name_builds():
    assert config(["gla"]).layers == config("gla").layers


def test_options_by_layer_reach_only_that_layer():
    mixed = config(["gla", "delta_net"], options={"gla": {"heads": 4}})
    assert mixed.layer_options("gla") == {"heads": 4}
    assert mixed.layer_options("delta_net") == {}


def test_options_without_layer_names_reach_every_layer():
    mixed = config(["gla", "delta_net"], options={"heads": 4})
    assert mixed.layer_options("gla") == mixed.layer_options("delta_net") == {"heads": 4}


def test_neither_a_field_nor_an_option_can_be_changed():
    example = config("gla", options={"heads": 2})
    with pytest.raises(dataclasses.FrozenInstanceError):
        example.depth = 3
    with pytest.raises(TypeError, match="dataclasses.replace"):
        example.options["heads"] = 4


def test_the_rows_of_the_embedding_are_rounded_up():
    assert config(vocab_size=277, vocab_multiple=8).vocab_rows == 280
    assert config(vocab_size=280, vocab_multiple=8).vocab_rows == 280


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({"layer": "gated_delta"}, "unknown layer 'gated_delta'.*gated_delta_net"),
        ({"layer": []}, "layer must be a name or 1 to depth = 4 names"),
        ({"layer": ["gla"] * 5}, "layer must be a name or 1 to depth = 4 names"),
        ({"d_model": 0}, "d_model must be an int >= 1, but came as 0"),
        ({"depth": -2}, "depth must be an int >= 1, but came as -2"),
        ({"vocab_size": True}, "vocab_size must be an int >= 1, but came as True"),
        ({"options": {"heads": 5}}, "heads=5 does not divide d_model = 32"),
        ({"mlp_factor": -1}, "mlp_factor must be 0, positive or None"),
        ({"mlp_factor": float("nan")}, "mlp_factor must be 0, positive or None"),
        ({"norm_eps": 0}, "norm_eps must be positive"),
        ({"norm_eps": float("inf")}, "norm_eps must be positive"),
        ({"norm_eps": 10**400}, "norm_eps must be positive"),
        ({"embedding_scale": 0}, "embedding_scale must be a positive number, but came as 0"),
        ({"logit_cap": -1.0}, "logit_cap must be a positive number, but came as -1.0"),
    ],
    ids=str,
)
def test_what_cannot_be_built_is_refused_in_one_line(wrong, said):
    with pytest.raises(ValueError, match=said) as caught:
        lv.ModelConfig(**({"layer": "linear_attention"} | SIZES | wrong))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong, said",
    [
        ({}, "give either features or vocab_size, but they came as None and None"),
        ({"features": 1, "vocab_size": 3}, "give either features or vocab_size, but they came as 1 and 3"),
        ({"features": 0}, "features must be an int >= 1, but came as 0"),
        ({"vocab_size": True}, "vocab_size must be an int >= 1, but came as True"),
        ({"features": 1, "classes": 0}, "classes must be an int >= 1, but came as 0"),
        ({"features": 1, "pooling": "sum"}, "pooling must be one of mean, last, max, but came as 'sum'"),
        ({"features": 1, "dropout": 1.0}, "dropout must be from 0 to below 1, but came as 1.0"),
        ({"features": 1, "options": {"heads": 5}}, "heads=5 does not divide d_model = 32"),
    ],
    ids=str,
)
def test_a_classifier_that_cannot_be_built_is_refused_in_one_line(wrong, said):
    with pytest.raises(ValueError, match=said) as caught:
        classifier(**wrong)
    assert "\n" not in str(caught.value)


def test_an_option_that_the_layer_lacks_is_a_type_error_that_lists_the_others():
    with pytest.raises(TypeError, match="head_count.*heads"):
        config("gla", options={"head_count": 2})


def test_unknown_and_missing_keys_of_a_file_are_named():
    written = config().to_dict()
    with pytest.raises(ValueError, match="unknown keys n_layer"):
        lv.ModelConfig.from_dict(written | {"n_layer": 3})
    with pytest.raises(ValueError, match="d_model missing"):
        lv.ModelConfig.from_dict({key: value for key, value in written.items() if key != "d_model"})
