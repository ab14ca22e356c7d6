"""xLSTM of transformers, and by the names of the authors' package: the same logits, also where theirs are wrong."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import lavagna as lv
from checkpoints.formats.comparison import (
    damages,
    distance,
    in_pieces,
    logits,
    of_transformers,
    reads_on,
    reads_padding,
    rewritten,
    round_trip_is_exact,
    same_model,
    saved,
)
from lavagna.checkpoints.formats import of_name
from lavagna.checkpoints.plan import plan

# The width is one at which the cache of transformers has the width of its keys: half of it is a multiple of 64.
SIZES = {"vocab_size": 50, "hidden_size": 128, "num_hidden_layers": 2, "num_heads": 4, "chunk_size": 16}
VARIANTS = {
    "plain": {},
    "other sizes": {"num_heads": 2, "qk_dim_factor": 1.0, "v_dim_factor": 0.5, "ffn_proj_factor": 1.3},
    "uncapped": {"gate_soft_cap": 40.0, "output_logit_soft_cap": 5.0, "norm_eps": 1e-5, "eps": 1e-5},
}


def build(transformers, **changed):
    config = transformers.xLSTMConfig(**SIZES | changed)
    model = transformers.xLSTMForCausalLM(config)
    # Gates of new models are shut to e^-10.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "igate_preact" in name:
                parameter.copy_(torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_theirs(transformers, variant, tmp_path):
    # It takes no mask at all: ours is held to each row alone.
    same_model(build(transformers, **VARIANTS[variant]), tmp_path, length=37, padding=False)


def test_theirs_takes_no_notice_of_a_mask(transformers, tmp_path):
    model = build(transformers)
    assert reads_padding(saved(model, tmp_path), of_transformers(model), "left")


def test_theirs_cannot_go_on_where_its_cache_has_another_width_than_its_keys(transformers, tmp_path):
    model = build(transformers, qk_dim_factor=0.25)
    folder, theirs = saved(model, tmp_path), of_transformers(model)
    ids = torch.randint(50, (2, 23))
    with pytest.raises((ValueError, RuntimeError)):
        in_pieces(theirs, ids, [11, 12])
    with torch.no_grad():
        whole = model(ids, use_cache=False).logits
    # In float64, else rounding would count twice: random gates leave normalizers near zero, which enlarge it.
    assert distance(reads_on(folder, ids, [11, 12], torch.float64), whole) < 1e-4


def fused(folder):
    """Write the projections of a folder together, as `weight_mode` "fused" has them."""
    tensors = load_file(folder / "model.safetensors")
    together = {
        "mlstm_layer.qkv_opreact.weight": [f"mlstm_layer.{part}.weight" for part in ("q", "k", "v", "ogate_preact")],
        "mlstm_layer.ifgate_preact.weight": [f"mlstm_layer.{part}_preact.weight" for part in ("igate", "fgate")],
        "mlstm_layer.ifgate_preact.bias": [f"mlstm_layer.{part}_preact.bias" for part in ("igate", "fgate")],
        "ffn.proj_up_gate_z.weight": [f"ffn.{part}.weight" for part in ("proj_up_gate", "proj_up")],
    }
    for index in range(2):
        start = f"backbone.blocks.{index}."
        for name, parts in together.items():
            tensors[start + name] = torch.cat([tensors.pop(start + part) for part in parts])
    save_file(tensors, folder / "model.safetensors")
    rewritten(folder, weight_mode="fused")


def test_fused_projections_are_the_same_model(transformers, tmp_path):
    model, ids = build(transformers), torch.randint(50, (1, 9))
    right = logits(lv.load(saved(model, tmp_path))[0], ids)[0]
    fused(tmp_path)
    assert torch.equal(logits(lv.load(tmp_path)[0], ids)[0], right)
    round_trip_is_exact(tmp_path)


def test_a_folder_of_the_authors_package_is_read_by_its_shapes(transformers, tmp_path):
    model, ids = build(transformers, num_heads=2), torch.randint(50, (1, 9))
    right = logits(lv.load(saved(model, tmp_path))[0], ids)[0]
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embedding.weight"] = tensors.pop("backbone.embeddings.weight")
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.yaml").write_text("embedding_dim: 128\n")
    assert plan(tmp_path).format == "xlstm_large"
    assert torch.equal(logits(lv.load(tmp_path)[0], ids)[0], right)
    round_trip_is_exact(tmp_path)


def test_a_model_of_ours_is_described_so_that_it_is_read_as_the_same():
    config = lv.ModelConfig(
        layer="mlstm", d_model=48, depth=2, vocab_size=50, tie_embeddings=False, norm_eps=1e-6, logit_cap=7.0
    )
    layer, format = lv.LanguageModel(config).blocks[0].mixer, of_name("xlstm")
    foreign = format.foreign_config(config)
    again = format.model_config(json.loads(json.dumps(foreign)), {"backbone.embeddings.weight": (50, 48)})
    twin = lv.LanguageModel(again)
    assert {name: x.shape for name, x in twin.state_dict().items()} == {
        name: x.shape for name, x in lv.LanguageModel(config).state_dict().items()
    }
    assert again.logit_cap == 7.0 and twin.blocks[0].mixer.gate_cap == layer.gate_cap
    assert twin.blocks[0].mixer.norm.eps == layer.norm.eps and twin.blocks[0].mixer.normalizer_eps == 0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"options": {"block": "paper"}}, "block='paper'"),
        ({"tie_embeddings": True}, "tie_embeddings=False"),
        ({"norm_eps": 1e-5}, "have eps 1e-06, the blocks' 1e-05"),
    ],
)
def test_a_model_that_it_cannot_hold_is_refused(changed, message):
    sizes = {"layer": "mlstm", "d_model": 32, "depth": 1, "vocab_size": 50, "tie_embeddings": False, "norm_eps": 1e-6}
    with pytest.raises(ValueError, match=message):
        of_name("xlstm").foreign_config(lv.ModelConfig(**sizes | changed))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"use_bias": True}, "use_bias is true"),
        ({"num_heads": 3}, "3 heads do not divide the 64 channels of the keys"),
        ({"qk_dim_factor": 0.25}, "mlstm_layer.q.weight is .64, 128. where the configuration wants .32, 128."),
        ({"mlstm_round_up_to_multiple_of": 48, "qk_dim_factor": 0.5}, "mlstm_round_up_to_multiple_of is 48"),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused_by_name(transformers, changed, message, tmp_path):
    folder = rewritten(saved(build(transformers), tmp_path), **changed)
    with pytest.raises(ValueError, match=message):
        lv.load(folder)


def test_damages_are_named(transformers, tmp_path):
    damages(saved(build(transformers), tmp_path / "whole"), "xlstm", tmp_path)
