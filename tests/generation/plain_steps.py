"""Models to be stepped, and their texts by captured steps beside those by the models' own."""

import torch

import lavagna as lv
from lavagna.generation import captured

HYBRID = ["gated_delta_net", "softmax_attention", "mamba2"]
VOCAB = 17


def build(layer="gated_delta_net", dtype=torch.float32, **changed):
    depth = len(layer) if isinstance(layer, list) else 2
    config = lv.ModelConfig(layer=layer, **({"d_model": 32, "depth": depth, "vocab_size": VOCAB} | changed))
    return lv.LanguageModel(config).to(dtype).eval()


def texts(model, ids, monkeypatch, tokens=20, **options):
    """What `generate` gives by captured steps, and by the model's own."""
    runs = []
    for worth in (1, 1000):
        monkeypatch.setattr(captured, "WORTH", worth)
        runs.append(lv.generate(model, ids, max_new_tokens=tokens, temperature=0, **options))
    return runs


def alike(one, other, tolerance=1e-4):
    assert torch.equal(one.ids, other.ids)
    assert list(one.state.tensors()) == list(other.state.tensors())
    for name, x in other.state.tensors().items():
        assert torch.allclose(one.state.tensors()[name], x, rtol=tolerance, atol=tolerance)
