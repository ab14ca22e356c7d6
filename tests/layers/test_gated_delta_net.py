"""Gated DeltaNet against its recurrence written out."""

import math

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, convolved, distance, made, rms, text


def written_out(layer, x):
    """The recurrence of one sequence (t, d), value head by value head, from convolution to output."""
    (heads, size), (value_heads, _) = layer.keys, layer.values
    mixed = x @ layer.qkv.linear.weight.T
    if layer.qkv.conv is not None:
        bias = 0.0 if layer.qkv.conv.bias is None else layer.qkv.conv.bias
        mixed = convolved(mixed, layer.qkv.conv.weight, bias)
    mixed = F.silu(mixed)
    q, k, v = mixed.split(layer.qkv.sizes, -1)
    q, k, v = q.reshape(-1, heads, size), k.reshape(-1, heads, size), v.reshape(-1, *layer.values)
    q, k = (z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    beta = layer.max_beta * torch.sigmoid(x @ layer.beta.weight.T)
    alpha = torch.exp(-layer.A_log.exp() * torch.log1p(torch.exp(x @ layer.step.weight.T + layer.dt_bias)))
    reads = torch.zeros_like(v)
    for h in range(value_heads):
        group = h // (value_heads // heads)
        S = torch.zeros(layer.values.size, size, dtype=x.dtype, device=x.device)
        for t in range(len(x)):
            S = alpha[t, h] * S
            S = S + beta[t, h] * torch.outer(v[t, h] - S @ k[t, group], k[t, group])
            reads[t, h] = S @ q[t, group] / math.sqrt(size)
    y = rms(reads, layer.norm.eps) * layer.norm.weight
    if layer.gate is not None:
        gate = (x @ layer.gate.weight.T).reshape(v.shape)
        y = y * {"silu": gate * torch.sigmoid(gate), "sigmoid": torch.sigmoid(gate)}[layer.norm.activation]
    return y.reshape(len(x), -1) @ layer.out.weight.T


OPTIONS = [
    {},
    {"heads": 2, "value_heads": 6, "max_beta": 2.0, "conv_bias": True, "activation": "sigmoid"},
    {"heads": 2, "head_dim": 9, "expand": 4 / 3, "conv_size": 0, "gate": False},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_its_recurrence(device, options):
    layer, x = made("gated_delta_net", device, **options), text(device, 2, 9)
    assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("length", [7, 50, 64, 65])
def test_where_nothing_fades_it_is_delta_net(device, length):
    gated = layers.build("gated_delta_net", D, heads=2, expand=1).to(device)
    delta = layers.build("delta_net", D, heads=2, gate=True).to(device)
    left_over = delta.load_state_dict(gated.state_dict(), strict=False)
    assert set(left_over.unexpected_keys) == {"A_log", "dt_bias", "step.weight"} and not left_over.missing_keys
    with torch.no_grad():
        gated.A_log.fill_(-torch.inf)
    x = text(device, 1, length, torch.float32)
    (y, state), (right, last) = gated(x), delta(x)
    assert distance(y, right) < 1e-5 and distance(state.memory, last.memory) < 1e-6


def test_a_new_layer_has_the_decays_of_the_paper():
    layer = layers.build("gated_delta_net", 1024, heads=64)
    assert (layer.A_log.exp() > 0).all() and (layer.A_log.exp() <= 16.001).all()
    steps = F.softplus(layer.dt_bias)
    assert (steps > 0.999e-3).all() and (steps < 0.1001).all()
    assert steps.log().std() > 1  # log-uniform over two decades has 1.33


def test_value_heads_that_are_no_multiple_of_the_key_heads_say_so():
    with pytest.raises(
        ValueError, match=r"value_heads must be a multiple of heads = 4, but came as 6. Use value_heads=8"
    ):
        layers.build("gated_delta_net", D, heads=4, value_heads=6)
