"""`lavagna generate`."""

import io
import json
import shutil
import sys
from types import SimpleNamespace

import pytest

from lavagna import LanguageModel, ModelConfig, save
from lavagna.checkpoints import convert
from lavagna.cli.generate import read_prompt
from lavagna.data import Tokenizer, WorldTokenizer

WORDS = ["--max-new-tokens", "12", "--seed", "1"]


def test_a_run_and_its_checkpoint_write_the_same_text(lavagna, run):
    text = lavagna("generate", run, "--prompt", "def", *WORDS).out
    assert len(text) > 5
    assert lavagna("generate", run / "checkpoints" / "step-00000004", "--prompt", "def", *WORDS).out == text


def test_another_seed_writes_another_text(lavagna, run):
    one, two = (lavagna("generate", run, "--prompt", "a", "--seed", seed).out for seed in (1, 2))
    assert one != two


def test_weights_in_8_bits_write_text_too(lavagna, run):
    pytest.importorskip("torchao", reason="torchao, which quantizes, is not installed")
    assert len(lavagna("generate", run, "--prompt", "def", *WORDS, "--weights", "int8").out) > 5


def test_a_text_ends_before_a_stop(lavagna, run):
    text = lavagna("generate", run, "--prompt", "def", *WORDS).out
    assert (
        lavagna("generate", run, "--prompt", "def", *WORDS, "--stop", text[3:5]).out
        == text[: text.find(text[3:5])] + "\n"
    )


def test_a_prompt_from_stdin_is_the_same_prompt(lavagna, run, monkeypatch):
    text = lavagna("generate", run, "--prompt", "é", *WORDS).out
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("é".encode())))
    assert lavagna("generate", run, "--prompt", "-", *WORDS).out == text


def test_a_prompt_that_the_locale_cannot_decode_is_utf_8_all_the_same():
    assert read_prompt("é".encode().decode("ascii", "surrogateescape")) == "é"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompt", ""], "empty"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--prompt", "a", "--top-p", "0"], "top_p"),
        (["--prompt", "a", "--top-k", "0"], "top_k"),
        (["--prompt", "a", "--max-new-tokens", "-1"], "max_new_tokens"),
        (["--prompt", "a", "--stop", ""], "stop"),
        (["--prompt", "a", "--device", "nonsense"], "nonsense"),
        (["--prompt", "a", "--weights", "int3"], "int3"),
    ],
)
def test_options_that_do_not_fit_are_refused(refused, run, words, said):
    assert said in refused("generate", run, *words)


def test_stdin_that_is_no_text_is_refused(refused, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"\xff\xfe")))
    assert "UTF-8" in refused("generate", run, "--prompt", "-")


def test_a_missing_run_is_refused(refused, tmp_path):
    assert "nothing at" in refused("generate", tmp_path / "nowhere", "--prompt", "a")


def test_a_run_without_a_checkpoint_is_refused(refused, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert "no checkpoint yet" in refused("generate", tmp_path, "--prompt", "a")


def test_a_checkpoint_of_another_version_is_refused(refused, run, tmp_path):
    other = shutil.copytree(run / "checkpoints" / "step-00000004", tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"format": "lavagna-model-99"}))
    assert "lavagna-model-99" in refused("generate", other, "--prompt", "a")


def test_a_checkpoint_without_a_tokenizer_is_refused(refused, run, tmp_path):
    other = shutil.copytree(run / "checkpoints" / "step-00000004", tmp_path / "other")
    (other / "tokenizer.json").unlink()
    assert "Save it with lavagna.save(model, path, tokenizer)" in refused("generate", other, "--prompt", "a")


def test_a_foreign_checkpoint_without_a_tokenizer_is_told_what_to_put_beside_it(refused, lavagna, tmp_path):
    save(LanguageModel(ModelConfig("rwkv7", 64, 1, 257, tie_embeddings=False)), tmp_path / "ours")
    for format, target in (("rwkv7", "model.pth"), ("fla_rwkv7", "folder")):
        convert(tmp_path / "ours", tmp_path / format / target, to=format)
        said = refused("generate", tmp_path / format / target, "--prompt", "a")
        assert "Put its tokenizer.json (or vocabulary file: rwkv_vocab" in said and "lavagna.save" not in said
    beside = {byte + 1: bytes([byte]) for byte in range(256)}
    WorldTokenizer(beside).save(tmp_path / "rwkv7" / "rwkv_vocab_v1.txt")
    assert not lavagna("generate", tmp_path / "rwkv7" / "model.pth", "--prompt", "a", *WORDS).code


def test_a_tokenizer_with_ids_beyond_the_vocabulary_is_refused(refused, run, tmp_path):
    other = shutil.copytree(run / "checkpoints" / "step-00000004", tmp_path / "other")
    Tokenizer.train(["ab " * 99], vocab_size=300).save(other)
    assert "beyond the vocabulary of 256" in refused("generate", other, "--prompt", "ab ab ab ")
