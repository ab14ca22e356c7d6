"""Checkpoints of mamba_ssm: configs with d_model and ssm_cfg, held to transformers' models of the same tensors."""

import json

import pytest
import torch

import lavagna as lv
from checkpoints.formats.comparison import of_transformers, round_trip_is_exact, same_logits

BASE = {"d_model": 64, "n_layer": 2, "vocab_size": 277, "rms_norm": True, "residual_in_fp32": True}
MAMBA2 = {"layer": "Mamba2", "d_state": 16, "headdim": 32, "ngroups": 2}


def twin(transformers, ssm):
    """The same model of transformers, for a vocabulary that is padded to 280."""
    if ssm:
        sizes = {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 2, "tie_word_embeddings": True}
        config, model = transformers.Mamba2Config, transformers.Mamba2ForCausalLM
    else:
        config, model, sizes = transformers.MambaConfig, transformers.MambaForCausalLM, {}
    return model(config(vocab_size=280, hidden_size=64, num_hidden_layers=2, **sizes)).eval()


def write(folder, model, ssm, **changed):
    """A folder as the package's authors published theirs."""
    folder.mkdir()
    names = {"backbone.embeddings.weight": "backbone.embedding.weight"}
    tensors = {names.get(name, name): tensor for name, tensor in model.state_dict().items()}
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(BASE | {"ssm_cfg": ssm, "pad_vocab_size_multiple": 8} | changed))
    return folder


@pytest.mark.parametrize("ssm", [{}, MAMBA2], ids=["mamba", "mamba2"])
def test_a_padded_vocabulary_is_read_and_written(transformers, ssm, tmp_path):
    model = twin(transformers, ssm)
    folder = write(tmp_path / "theirs", model, ssm)
    loaded = same_logits(folder, of_transformers(model), cut=bool(ssm))
    assert loaded.embedding.weight.shape == (280, 64) and loaded.config.vocab_size == 277
    assert loaded.head.weight is loaded.embedding.weight
    round_trip_is_exact(folder)


def test_layer_norms_are_read_and_written(tmp_path):
    options = {"block": {"norm": "layer"}, "vocab_multiple": 8}
    model = lv.LanguageModel(lv.ModelConfig("mamba", 32, 2, 277, **options)).eval()
    lv.save(model, tmp_path / "ours")
    lv.checkpoints.convert(tmp_path / "ours", tmp_path / "theirs", to="state_spaces")
    assert json.loads((tmp_path / "theirs" / "config.json").read_text())["rms_norm"] is False
    loaded = lv.load(tmp_path / "theirs").model
    ids = torch.randint(277, (1, 9))
    assert torch.equal(loaded(ids).logits, model(ids).logits) and loaded.norm.bias is not None


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"attn_layer_idx": [1]}, r"attn_layer_idx is \[1\]"),
        ({"d_intermediate": 128}, "d_intermediate is 128"),
        ({"ssm_cfg": {"layer": "Mamba7"}}, "names the layer 'Mamba7'"),
        ({"ssm_cfg": {"wings": 2}}, "has wings"),
        ({"d_model": 32}, r"is \(280, 64\) where the configuration wants \(280, 32\)"),
        ({"vocab_size": 290}, r"backbone.embedding.weight is \(280, 64\) where the configuration wants \(296, 64\)"),
        ({"n_layer": 3}, "backbone.layers.2.norm.weight is missing"),
    ],
)
def test_what_is_another_model_is_refused(transformers, changed, said, tmp_path):
    with pytest.raises(ValueError, match=f"state_spaces.*{said}"):
        lv.load(write(tmp_path / "theirs", twin(transformers, {}), {}, **changed))
