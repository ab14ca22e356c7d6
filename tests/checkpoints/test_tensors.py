"""Which tensors a file may hold beside one another, and how what no model holds is said."""

import json
import os
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import lavagna as lv


def build(layer="gla", **changed):
    return lv.LanguageModel(lv.ModelConfig(layer, **({"d_model": 32, "depth": 2, "vocab_size": 256} | changed)))


@pytest.fixture
def folder(tmp_path):
    lv.save(build(), tmp_path / "model")
    return tmp_path / "model"


def edit(folder, change):
    """Rewrite the tensors of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def configure(folder, **changed):
    config = json.loads((folder / "config.json").read_text())
    config["model"] |= changed
    (folder / "config.json").write_text(json.dumps(config))


def test_what_torch_says_of_sizes_comes_without_its_own_calls(folder):
    configure(folder, vocab_size=2**62)
    with pytest.raises(ValueError, match="describes no model") as raised:
        lv.load(folder)
    assert "frame #" not in str(raised.value) and "\n" not in str(raised.value)


def test_vectors_may_have_a_dtype_of_their_own(tmp_path):
    lv.save(build("mamba2").bfloat16(), tmp_path / "model")
    edit(tmp_path / "model", lambda x: x.update({name: x[name].float() for name in x if "norm" in name}))
    model, _ = lv.load(tmp_path / "model")
    assert model(torch.zeros(1, 2, dtype=torch.int64)).logits.isfinite().all()


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are text here")
def test_a_folder_whose_name_is_no_text_is_refused_by_that(folder):
    other = folder.with_name(os.fsdecode(b"model\xff"))
    folder.rename(other)
    with pytest.raises(ValueError, match="has a name that is not UTF-8.*Rename it[.]"):
        lv.load(other)
