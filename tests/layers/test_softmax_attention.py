"""Softmax attention against its sum written out, and its growing state."""

import math

import pytest
import torch

from lavagna import layers
from sample_layers import D, build, distance, text, turned


def written_out(layer, x):
    """One sequence (t, d): every read as a weighted mean of all earlier values."""
    heads, size = layer.heads
    q, k, v = (x @ layer.qkv.weight.T).reshape(-1, 3, heads, size).unbind(1)
    # Pairs are (j, j + size / 2); as neighbors they are complex numbers.
    order = torch.arange(size).reshape(2, -1).T.flatten()
    exponents = [2 * j / size for j in range(size // 2)]
    q, k = (torch.stack([turned(row[:, order], t, exponents) for t, row in enumerate(z)]) for z in (q, k))
    reads = torch.zeros_like(v)
    for t in range(len(x)):
        for h in range(heads):
            weights = torch.exp(k[: t + 1, h] @ q[t, h] / math.sqrt(size))
            reads[t, h] = weights @ v[: t + 1, h] / weights.sum()
    return reads.reshape(len(x), -1) @ layer.out.weight.T


@pytest.mark.parametrize("form", ["recurrent", "parallel"])
def test_it_is_its_sum(device, form):
    layer, x = build("softmax_attention heads", device), text(device, 2, 9)
    right = torch.stack([written_out(layer, row) for row in x])
    assert distance(layer(x, form=form).y, right) < 1e-12


def test_its_state_grows_by_one_entry_a_token(device):
    layer = layers.build("softmax_attention", D).to(device)
    sizes, state = [], None
    for _ in range(4):
        state = layer(text(device, 1, 1, torch.float32), state).state
        sizes.append(state.keys.numel() + state.values.numel())
    assert sizes == [2 * D, 4 * D, 6 * D, 8 * D]


def test_rows_of_unlike_length_are_kept_without_holes(device):
    layer, x = build("softmax_attention", device), text(device, 2, 6)
    mask = torch.tensor([[0, 1, 0, 1, 0, 0], [1, 1, 0, 1, 1, 0]], device=device)
    state = layer(x, mask=mask).state
    assert state.keys.shape[1] == 4
    assert not state.keys[0, 2:].any() and state.keys[0, :2].any(-1).all()


def test_a_form_it_lacks_is_refused(device):
    with pytest.raises(ValueError, match="softmax_attention: form must be one of recurrent, parallel or auto"):
        build("softmax_attention", device)(text(device, 1, 2), form="chunkwise")


def test_an_odd_head_is_refused():
    with pytest.raises(ValueError, match="head_dim must be even.*Use head_dim=4 with heads=2"):
        layers.build("softmax_attention", D, heads=2, head_dim=3)
