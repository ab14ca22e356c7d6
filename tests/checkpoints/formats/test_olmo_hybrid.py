"""OLMo Hybrid of transformers: the same logits, also where transformers' own are wrong."""

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
from checkpoints.formats.sizes import DECODER
from checkpoints.formats.written import HYBRID, refused_for, written_for
from lavagna.checkpoints.plan import plan

SIZES = DECODER | {"pad_token_id": 0, "eos_token_id": 1}
VARIANTS = {
    "as published": {"rope_parameters": {"rope_theta": None, "rope_type": "default"}},
    "turned": {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}, "num_key_value_heads": 2},
    "other": {
        "linear_allow_neg_eigval": False,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 6,
        "linear_value_head_dim": 10,
        "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention"],
        "attention_bias": True,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-3,
    },
}


def build(transformers, **changed):
    return transformers.OlmoHybridForCausalLM(transformers.OlmoHybridConfig(**SIZES | changed))


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_theirs(transformers, variant, tmp_path):
    same_model(build(transformers, **VARIANTS[variant]), tmp_path)


def test_theirs_reads_padding_in_the_middle(transformers, tmp_path):
    model = build(transformers)
    assert reads_padding(saved(model, tmp_path), of_transformers(model), "middle")


@pytest.mark.parametrize(
    ("written", "turned"),
    [
        ({"rope_parameters": None, "rope_theta": None}, False),
        ({"rope_parameters": None}, False),
        ({}, True),
        ({"rope_theta": 500.0}, True),
    ],
)
def test_positions_that_are_null_turn_nothing(transformers, written, turned, tmp_path):
    folder = saved(build(transformers, **VARIANTS["as published"]), tmp_path)
    layer = lv.load(rewritten(folder, **{"rope_parameters": "gone"} | written))[0].blocks[3].mixer
    assert bool(layer.turned) == turned and layer.rotary_base == written.get("rope_theta", 10000.0) or not turned


def as_published(model):
    """The tensors of their model under the names that its files were published with."""
    before, sizes = {}, model.model.layers[1 if model.config.layer_types[0] == "full_attention" else 0].linear_attn
    for name, x in model.state_dict().items():
        linear = "layers." in name and model.config.layer_types[int(name.split(".")[2])] == "linear_attention"
        if name.endswith("conv1d.weight"):
            parts = x.split([sizes.key_dim, sizes.key_dim, sizes.value_dim])
            before |= {name.replace("conv1d", f"{part}_conv1d"): y for part, y in zip("qkv", parts, strict=True)}
        elif linear:
            name = name.replace("input_layernorm", "attention_layer_norm")
            before[name.replace("post_attention_layernorm", "feedforward_layer_norm")] = x
        else:
            before[name] = x
    return {name: x.contiguous() for name, x in before.items()}


@pytest.mark.parametrize("names", ["olmo_hybrid", "olmo_hybrid_resaved", "olmo_hybrid_in_memory"])
def test_each_way_of_naming_its_tensors_is_read(transformers, names, tmp_path):
    model = build(transformers, **VARIANTS["as published"])
    folder = saved(model, tmp_path)
    if names != "olmo_hybrid_resaved":
        tensors = as_published(model) if names == "olmo_hybrid" else model.state_dict()
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert plan(folder).format == names
    ids = torch.randint(50, (2, 9))
    assert distance(logits(lv.load(folder)[0], ids)[0], of_transformers(model)(ids)[0]) < 1e-4
    round_trip_is_exact(folder)
    again = transformers.OlmoHybridForCausalLM.from_pretrained(folder)
    assert all(map(torch.equal, again.state_dict().values(), model.state_dict().values()))


def test_theirs_writes_convolutions_of_unlike_widths_in_equal_parts(transformers, tmp_path):
    tensors = load_file(saved(build(transformers), tmp_path) / "model.safetensors")
    widths = [tensors[f"model.layers.0.linear_attn.{part}_proj.weight"].shape[0] for part in "qkv"]
    written = [tensors[f"model.layers.0.linear_attn.{part}_conv1d.weight"].shape[0] for part in "qkv"]
    assert widths == [24, 24, 48] and written == [32, 32, 32]


def test_damages_are_named(transformers, tmp_path):
    damages(saved(build(transformers), tmp_path / "whole"), "olmo_hybrid", tmp_path)


ATTENTION = {"qk_norm": "width", "norm_eps": 1e-6}
OURS = dataclasses.replace(
    HYBRID,
    options={"gated_delta_net": {"max_beta": 2.0}, "softmax_attention": ATTENTION},
    block={"gated_delta_net": {"mlp_width": 40}, "softmax_attention": {"norm_place": "post", "mlp_width": 40}},
)


@pytest.mark.parametrize("fraction", [0.0, 1.0])
def test_a_model_of_ours_is_written_as_theirs(transformers, fraction, tmp_path):
    attention = {**ATTENTION, "rotary_fraction": fraction}
    ours = dataclasses.replace(OURS, options={"gated_delta_net": {}, "softmax_attention": attention})
    written_for(ours, "olmo_hybrid", transformers.OlmoHybridForCausalLM, tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"block": {"mlp_width": 40}}, "norm_place='pre'"),
        ({"options": {**OURS.options, "gated_delta_net": {"max_beta": 1.5}}}, "max_beta=1.5, there 1.0"),
        ({"options": {**OURS.options, "softmax_attention": {"norm_eps": 1e-6}}}, "q_norm.weight"),
        (
            {"options": {**OURS.options, "softmax_attention": {**ATTENTION, "rotary_fraction": 0.5}}},
            "rotary_fraction=0.5, there 1.0",
        ),
        ({"layer": "gated_delta_net", "options": {}, "block": {}}, "some of both"),
    ],
)
def test_another_model_of_ours_is_refused(changed, said):
    refused_for(OURS, "olmo_hybrid", said, **changed)
