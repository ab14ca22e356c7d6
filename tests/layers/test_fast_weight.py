"""The Delta Network of 2021 against its recurrence written out."""

import math

import pytest
import torch

from lavagna import layers
from sample_layers import D, distance, made, text


def features(layer, x):
    """phi of vectors (..., k), as published, and their shares."""
    if layer.feature_map == "elu_plus_one":
        y = torch.where(x > 0, x + 1, x.exp())
    else:
        r = torch.cat([x.clamp_min(0), (-x).clamp_min(0)], -1)
        n = r.shape[-1]
        y = torch.stack([r[..., i] * r[..., (i - j) % n] for j in range(1, layer.nu + 1) for i in range(n)], -1)
    return y / y.sum(-1, keepdim=True)


def written_out(layer, x):
    """The recurrence of one sequence (t, d), head by head; and its memory."""
    heads, size = layer.heads
    q, k, v = (x @ layer.qkv.weight.T).reshape(-1, 3, heads, size).unbind(1)
    q, k, beta = features(layer, q), features(layer, k), torch.sigmoid(x @ layer.beta.weight.T)
    memory = torch.zeros(heads, size, k.shape[-1], dtype=x.dtype, device=x.device)
    reads = torch.zeros_like(v)
    for h in range(heads):
        z = torch.zeros(k.shape[-1], dtype=x.dtype, device=x.device)
        for t in range(len(x)):
            memory[h] = memory[h] + beta[t, h] * torch.outer(v[t, h] - memory[h] @ k[t, h], k[t, h])
            z = z + k[t, h]
            reads[t, h] = memory[h] @ q[t, h] / math.sqrt(size)
            if layer.normalize:
                reads[t, h] /= z @ q[t, h] + 1e-5
    return reads.reshape(len(x), -1) @ layer.out.weight.T, memory


OPTIONS = [
    {},
    {"heads": 4, "nu": 3},
    {"heads": 2, "normalize": True},
    {"heads": 2, "feature_map": "elu_plus_one"},
    {"heads": 2, "feature_map": "elu_plus_one", "normalize": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_its_recurrence(device, options):
    layer, x = made("fast_weight", device, **options), text(device, 2, 9)
    ys, memories = zip(*(written_out(layer, row) for row in x), strict=True)
    y, state = layer(x)
    assert distance(y, torch.stack(ys)) < 1e-12 and distance(state.memory, torch.stack(memories)) < 1e-12


def test_keys_of_shares_keep_a_long_text_of_large_numbers_finite(device):
    layer = layers.build("fast_weight", D).to(device)
    y, state = layer(100 * text(device, 1, 600, torch.float32))
    assert y.isfinite().all() and state.memory.isfinite().all()
    v = 100 * layer.qkv.weight.abs().sum(-1).max()
    assert state.memory.abs().max() < 600 * v


def test_more_shifts_make_more_features():
    for nu in (1, 2, 3):
        state = layers.build("fast_weight", 64, heads=4, nu=nu).initial_state(1)
        assert state.memory.shape == (1, 4, 16, 2 * nu * 16)


def test_the_normalizer_is_remembered_beside_the_memory(device):
    layer, x = made("fast_weight", device, normalize=True, heads=2), text(device, 1, 8)
    _, k, _ = (x @ layer.qkv.weight.T).unflatten(-1, (3, *layer.heads)).unbind(2)
    assert distance(layer(x).state.sum_of_keys.squeeze(2), features(layer, k).sum(1)) < 1e-12
