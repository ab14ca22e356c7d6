"""Trying out tokens and taking them back: drafts, snapshots, forks."""

import pytest
import torch

import lavagna as lv

LAYERS = [*lv.layers.names(), ["gated_delta_net", "mamba2", "softmax_attention"]]


def build(layer, device):
    depth = len(layer) if isinstance(layer, list) else 2
    return lv.LanguageModel(lv.ModelConfig(layer=layer, d_model=32, depth=depth, vocab_size=13)).to(device)


def text(*shape, device):
    return torch.randint(13, shape, device=device)


def same(state, other):
    return all(torch.equal(tensor, other.tensors()[name]) for name, tensor in state.tensors().items())


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@torch.no_grad()
def test_of_a_draft_of_four_ids_one_is_kept(layer, device):
    model, ids, draft = build(layer, device), text(1, 6, device=device), text(1, 4, device=device)
    _, before = model(ids)
    copy = before.clone()
    checked, _ = model(draft, before)
    assert same(before, copy)
    _, kept = model(draft[:, :1], before)
    logits, state = model(text(1, 5, device=device).fill_(3), kept)
    whole, right = model(torch.cat([ids, draft[:, :1], torch.full((1, 5), 3, device=device)], 1))
    assert torch.allclose(logits, whole[:, 7:], atol=1e-5 * whole.abs().max().item())
    assert torch.allclose(checked[:, 0], whole[:, 6], atol=1e-5 * whole.abs().max().item())
    assert state.tokens_seen.tolist() == right.tokens_seen.tolist() == [12]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@torch.no_grad()
def test_a_snapshot_goes_on_to_the_bit_after_four_junk_ids(layer, device):
    model, ids = build(layer, device), text(2, 11, device=device)
    _, snapshot = model(ids[:, :6])
    wanted, last = model(ids[:, 6:], snapshot)
    model(text(2, 4, device=device), snapshot)
    again, last_again = model(ids[:, 6:], snapshot)
    assert torch.equal(again, wanted) and same(last, last_again)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@torch.no_grad()
def test_forked_rows_share_no_storage(layer, device):
    model = build(layer, device)
    _, state = model(text(3, 6, device=device))
    beams = state.select([2, 0, 0])
    untouched, other = state.clone(), beams.select([2]).clone()
    for tensor in beams.tensors().values():
        tensor[1].fill_(1)
    assert same(state, untouched) and same(beams.select([2]), other)
