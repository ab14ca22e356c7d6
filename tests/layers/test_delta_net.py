"""DeltaNet against its recurrence written out."""

import math

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, convolved, distance, made, rms, text


def written_out(layer, x):
    """The recurrence of one sequence (t, d), head by head, from convolution to output."""
    heads, size = layer.keys
    bias = 0.0 if layer.qkv.conv.bias is None else layer.qkv.conv.bias
    q, k, v = convolved(x @ layer.qkv.linear.weight.T, layer.qkv.conv.weight, bias).split(layer.qkv.sizes, -1)
    bent = {"silu": F.silu, "relu": F.relu, "elu_plus_one": lambda z: F.elu(z) + 1, "identity": lambda z: z}
    q, k, v = bent[layer.qkv.activations[0]](q), bent[layer.qkv.activations[0]](k), F.silu(v)
    q, k, v = q.reshape(-1, heads, size), k.reshape(-1, heads, size), v.reshape(-1, *layer.values)
    if layer.qk_norm == "l2":
        q, k = (z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    else:
        q, k = (z / z.abs().sum(-1, keepdim=True) for z in (q, k))
    beta = layer.max_beta * torch.sigmoid(x @ layer.beta.weight.T)
    reads = torch.zeros_like(v)
    for h in range(heads):
        S = torch.zeros(layer.values.size, size, dtype=x.dtype, device=x.device)
        for t in range(len(x)):
            S = S + beta[t, h] * torch.outer(v[t, h] - S @ k[t, h], k[t, h])
            reads[t, h] = S @ q[t, h] / math.sqrt(size)
    y = rms(reads, layer.norm.eps) * layer.norm.weight
    if layer.gate is not None:
        y = y * F.silu(x @ layer.gate.weight.T).reshape(y.shape)
    return y.reshape(len(x), -1) @ layer.out.weight.T


OPTIONS = [
    {},
    {"gate": True, "heads": 2, "max_beta": 2.0},
    {"qk_activation": "elu_plus_one", "qk_norm": "sum", "conv_bias": True, "heads": 4},
    {"qk_activation": "identity", "expand": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_its_recurrence(device, options):
    layer, x = made("delta_net", device, **options), text(device, 2, 9)
    assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("max_beta", [1.0, 2.0])
def test_a_long_text_of_large_numbers_stays_finite(device, max_beta):
    layer = layers.build("delta_net", D, max_beta=max_beta).to(device)
    y, state = layer(100 * text(device, 1, 600, torch.float32))
    assert y.isfinite().all() and state.memory.isfinite().all()


def test_with_beta_one_a_key_seen_again_finds_its_last_value(device):
    layer = layers.build("delta_net", D, heads=1, head_dim=D, conv_size=0).to(device).double()
    with torch.no_grad():
        layer.beta.weight.zero_()
        layer.max_beta = 2.0  # twice sigmoid(0) is 1
    x = text(device, 1, 6)
    x[:, 5] = x[:, 2]
    _, k, v = F.silu(x @ layer.qkv.linear.weight.T).split(layer.qkv.sizes, -1)
    k = k[0, 5] / (k[0, 5].square().sum() + 1e-6).sqrt()
    found = layer(x).state.memory[0, 0] @ k
    assert distance(found, v[0, 5]) < 1e-5
