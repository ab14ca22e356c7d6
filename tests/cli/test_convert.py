"""`lavagna convert`."""

import os

import pytest
import torch

import lavagna as lv
from lavagna.data import Tokenizer


@pytest.fixture
def ours(tmp_path):
    lv.save(lv.LanguageModel(lv.ModelConfig("mamba2", 32, 1, 256)), tmp_path / "ours", Tokenizer.bytes())
    return tmp_path / "ours"


def test_a_checkpoint_goes_to_a_named_format_and_back_in_one_line_each(lavagna, ours, tmp_path):
    there = lavagna("convert", ours, tmp_path / "theirs", "--to", "mamba2")
    back = lavagna("convert", tmp_path / "theirs", tmp_path / "again")
    for done, formats in ((there, "lavagna -> mamba2"), (back, "mamba2 -> lavagna")):
        assert done.code == 0 and done.out.startswith(f"{formats}: ") and done.out.count("\n") == 1, done.err
    ids = torch.randint(256, (1, 5))
    before, (after, tokenizer) = lv.load(ours).model, lv.load(tmp_path / "again")
    assert torch.equal(before(ids).logits, after(ids).logits) and tokenizer == Tokenizer.bytes()


def test_what_cannot_be_converted_is_one_line_and_no_file(refused, ours, tmp_path):
    assert "came from no other format" in refused("convert", ours, tmp_path / "new")
    assert "can't hold this model" in refused("convert", ours, tmp_path / "new", "--to", "mamba")
    assert "there is nothing at" in refused("convert", tmp_path / "nowhere", tmp_path / "new")
    assert os.listdir(tmp_path) == ["ours"]
    (tmp_path / "link").symlink_to("link")
    said = refused("convert", ours, tmp_path / "link", "--to", "mamba2")
    assert said.count("leads back to itself") == 1 and "Name a new folder" in said


def test_text_is_generated_from_a_foreign_checkpoint(lavagna, ours, tmp_path):
    assert lavagna("convert", ours, tmp_path / "theirs", "--to", "mamba2").code == 0
    texts = [
        lavagna("generate", path, "--prompt", "a", "--max-new-tokens", 5, "--temperature", 0).out
        for path in (ours, tmp_path / "theirs")
    ]
    assert texts[0] == texts[1] != ""


def test_a_run_is_converted_by_its_newest_checkpoint(lavagna, ours, tmp_path):
    steps = tmp_path / "run" / "checkpoints"
    steps.mkdir(parents=True)
    ours.rename(steps / "step-00000001")
    done = lavagna("convert", tmp_path / "run", tmp_path / "theirs", "--to", "mamba2")
    assert done.code == 0 and done.out.startswith("lavagna -> mamba2: "), done.err
