"""Trying out tokens and taking them back: drafts, snapshots, forks."""

import pytest
import torch

import lavagna as lv
from sample_layers import BACKENDS

LAYERS = [*lv.layers.names(), ["gated_delta_net", "mamba2", "softmax_attention"]]


def build(layer, device):
    depth = len(layer) if isinstance(layer, list) else 2
    return lv.LanguageModel(lv.ModelConfig(layer=layer, d_model=32, depth=depth, vocab_size=13)).to(device)


def text(*shape, device):
    return torch.randint(13, shape, device=device)


def same(state, other):
    return all(torch.equal(tensor, other.tensors()[name]) for name, tensor in state.tensors().items())


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_of_a_draft_of_four_ids_one_is_kept(layer, backend, device):
    model, ids, draft = build(layer, device), text(1, 6, device=device), text(1, 4, device=device)
    _, before = model(ids, backend=backend)
    copy = before.clone()
    checked, _ = model(draft, before, backend=backend)
    assert same(before, copy)
    _, kept = model(draft[:, :1], before, backend=backend)
    logits, state = model(text(1, 5, device=device).fill_(3), kept, backend=backend)
    whole, right = model(torch.cat([ids, draft[:, :1], torch.full((1, 5), 3, device=device)], 1), backend=backend)
    assert torch.allclose(logits, whole[:, 7:], atol=1e-5 * whole.abs().max().item())
    assert torch.allclose(checked[:, 0], whole[:, 6], atol=1e-5 * whole.abs().max().item())
    assert state.tokens_seen.tolist() == right.tokens_seen.tolist() == [12]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_a_snapshot_goes_on_to_the_bit_after_four_junk_ids(layer, backend, device):
    model, ids = build(layer, device), text(2, 11, device=device)
    _, snapshot = model(ids[:, :6], backend=backend)
    wanted, last = model(ids[:, 6:], snapshot, backend=backend)
    model(text(2, 4, device=device), snapshot, backend=backend)
    again, last_again = model(ids[:, 6:], snapshot, backend=backend)
    assert torch.equal(again, wanted) and same(last, last_again)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_forked_rows_share_no_storage(layer, backend, device):
    model = build(layer, device)
    _, state = model(text(3, 6, device=device), backend=backend)
    beams = state.select([2, 0, 0])
    untouched, other = state.clone(), beams.select([2]).clone()
    for tensor in beams.tensors().values():
        tensor[1].fill_(1)
    assert same(state, untouched) and same(beams.select([2]), other)
