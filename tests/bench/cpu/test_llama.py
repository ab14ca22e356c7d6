"""llama.cpp with the weights of a model of ours."""

from dataclasses import replace

import pytest
import torch

from lavagna.bench import cpu
from lavagna.bench.cpu import gguf, llama, peers

needs_llama = pytest.mark.skipif(peers.missing(llama.PACKAGE) is not None, reason=f"{llama.PACKAGE} is not installed")


def rows(layer):
    return list(cpu.rows("generation", layers=[layer], others=(llama.PACKAGE,), quick=True))


@needs_llama
@pytest.mark.parametrize("layer", gguf.KINDS)
def test_any_cut_of_a_text_has_our_logits(layer):
    config = replace(peers.configuration(layer, 2, d_model=64, vocab_size=96, twin=False), tie_embeddings=False)
    model = peers.stirred(config)
    ids = torch.randint(96, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), llama.of_llama_cpp(model, "float32") as theirs:
        wanted = model(ids).logits[0, -1]
        for cut in (0, 1, 33):
            theirs.read(ids[0, :cut].tolist() if cut else ids[0].tolist())
            for each in ids[0, cut:].tolist() if cut else []:
                theirs.append([each])
            torch.testing.assert_close(theirs.logits, wanted, rtol=1e-4, atol=1e-4)


@needs_llama
@pytest.mark.parametrize("layer", gguf.KINDS)
def test_steps_and_prompts_take_turns(layer):
    found = rows(layer)
    assert all(row.right for row in found)
    theirs = {row.what for row in found if row.by == llama.PACKAGE and row.time_ms}
    ours = {row.what for row in found if row.by == "lavagna" and row.against == llama.PACKAGE}
    assert theirs == ours and {"step float32", "prompt of 32 bfloat16"} <= ours
    assert {row.bound for row in found if row.against == llama.PACKAGE} == {1.0, None}


def test_where_it_is_not_there_a_line_says_so(monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda name: None)
    found = [(row.what, row.note) for row in rows("mamba") if row.by == llama.PACKAGE]
    assert found == [(f"step {dtype}", "llama-cpp-python is not installed") for dtype in ("float32", "bfloat16")]


@needs_llama
def test_what_is_no_model_is_told_of(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(RuntimeError, match="can't read"):
        llama.Llama(tmp_path / "model.gguf")
