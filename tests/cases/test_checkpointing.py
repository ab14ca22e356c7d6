"""Activations computed anew in the backward pass: with packing, with a state, under autocast."""

import pytest
import torch

import lavagna as lv
from sample_layers import BACKENDS

BOTH_WAYS = ["lssl", "s4", "dss", "s4d", "s5"]
LAYERS = [*lv.layers.names(), ["gated_delta_net", "mamba2", "softmax_attention"]]


def build(layer, device):
    return lv.LanguageModel(lv.ModelConfig(layer=layer, d_model=32, depth=3, vocab_size=13)).to(device).train()


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("low", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("packed", [None, [0, 5, 33]], ids=["whole", "packed"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_loss_gradients_and_state_are_the_same_to_the_bit(layer, packed, low, backend, device):
    model, ids = build(layer, device), torch.randint(13, (1, 33), device=device)
    with torch.no_grad():
        _, start = model(torch.randint(13, (1 if packed is None else 2, 4), device=device))
    before, seen = start.clone(), []
    for model.checkpointing in (False, True):
        model.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=low):
            logits, state = model(ids, start, cu_seqlens=packed, backend=backend)
            loss = torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:])
        loss.backward()
        seen.append([loss.detach(), *state.detach().tensors().values(), *(x.grad for x in model.parameters())])
    assert all(torch.equal(kept, again) for kept, again in zip(*seen, strict=True))
    assert all(torch.equal(tensor, before.tensors()[name]) for name, tensor in start.tensors().items())
    lengths = [33] if packed is None else [5, 28]
    assert state.tokens_seen.tolist() == [4 + length for length in lengths]


@pytest.mark.parametrize(
    ("layer", "options"),
    [(name, {}) for name in lv.layers.names()] + [(name, {"bidirectional": True}) for name in BOTH_WAYS],
)
def test_what_is_left_out_is_left_out_again_in_classifiers_of_any_direction(layer, options, device):
    config = lv.ClassifierConfig(layer, 16, 3, classes=2, features=3, options=options, dropout=0.1)
    model, x = lv.SequenceClassifier(config).to(device).train(), torch.randn(2, 33, 3, device=device)
    mask, seen = torch.rand(2, 33, device=device) < 0.7, []
    for model.checkpointing in (False, True):
        model.zero_grad()
        torch.manual_seed(1)
        loss = torch.nn.functional.cross_entropy(model(x, mask=mask).logits, torch.tensor([0, 1], device=device))
        loss.backward()
        seen.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(kept, again) for kept, again in zip(*seen, strict=True))
