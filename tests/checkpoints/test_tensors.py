"""Which tensors a file may hold beside one another, and how what no model holds is said."""

import os
import sys

import pytest
import torch

import lavagna as lv
from checkpoints.own_folder import build, configure, edit


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
