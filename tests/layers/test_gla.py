"""Gated linear attention against its recurrence written out."""

import math

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, distance, made, rms, text


def written_out(layer, x):
    """The recurrence of one sequence (t, d), head by head."""
    heads, size = layer.keys
    q, k, v = (x @ layer.qkv.linear.weight.T).split(layer.qkv.sizes, -1)
    if layer.feature_map == "relu":
        q, k = q.clamp_min(0), k.clamp_min(0)
    q, k, v = q.reshape(len(x), -1, size), k.reshape(-1, heads, size), v.reshape(len(x), heads, -1)
    down, up = layer.decay.down, layer.decay.up
    alpha = torch.sigmoid(x @ down.weight.T @ up.weight.T + up.bias).reshape(-1, heads, size) ** (1 / 16)
    if layer.lower_bound is not None:
        alpha = alpha.clamp_min(math.exp(layer.lower_bound))
    reads = torch.zeros(len(x), *layer.values, dtype=x.dtype, device=x.device)
    for i in range(layer.values.count):
        S, h = torch.zeros(layer.values.size, size, dtype=x.dtype, device=x.device), i // layer.group
        for t in range(len(x)):
            S = S * alpha[t, h] + torch.outer(v[t, h], k[t, h])
            reads[t, i] = S @ q[t, i] / math.sqrt(size)
    y = rms(reads, layer.norm.eps)
    y = y if layer.norm.weight is None else y * layer.norm.weight
    if layer.gate is not None:
        gate = (x @ layer.gate.weight.T).reshape(y.shape)
        y = y * {"silu": gate * torch.sigmoid(gate), "sigmoid": torch.sigmoid(gate)}[layer.norm.activation]
    return y.reshape(len(x), -1) @ layer.out.weight.T


OPTIONS = [
    {},
    {"heads": 4, "kv_heads": 2, "lower_bound": -0.04, "feature_map": "relu", "activation": "sigmoid", "affine": False},
    {"heads": 2, "kv_heads": 1, "gate": False, "expand": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_its_recurrence(device, options):
    layer, x = made("gla", device, **options), text(device, 2, 9)
    assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("length", [7, 64, 65])
def test_gates_of_one_leave_a_plain_sum(device, length):
    layer = layers.build("gla", D, heads=2, temperature=1e30).to(device)
    x = text(device, 1, length, torch.float32)
    _, k, v = (x @ layer.qkv.linear.weight.T).split(layer.qkv.sizes, -1)
    right = torch.einsum("bthv,bthk->bhvk", v.unflatten(-1, layer.values), k.unflatten(-1, layer.keys))
    assert distance(layer(x).state.memory, right) < 1e-6


def test_a_new_layer_forgets_a_few_percent_a_step(device):
    layer = layers.build("gla", 64).to(device)
    alpha = torch.exp(F.logsigmoid(layer.decay(torch.randn(1000, 64, device=device))) / 16)
    assert alpha.min() > 0.9 and alpha.max() < 1


def test_options_that_cannot_be_say_why():
    with pytest.raises(ValueError, match=r"expand_k=0.01 times d_model = 32.*Use expand_k=0.03125"):
        layers.build("gla", D, expand_k=0.01)
    with pytest.raises(ValueError, match="temperature must be a finite number above 0, but came as 0"):
        layers.build("gla", D, temperature=0)
    with pytest.raises(ValueError, match="conv_size must be an int >= 0"):
        layers.build("gla", D, conv_size=-1)
