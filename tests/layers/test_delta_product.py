"""DeltaProduct against its recurrence written out, and the layers it reduces to."""

import math

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, convolved, distance, made, rms, text


def written_out(layer, x):
    """The recurrence of one sequence (t, d), value head by value head and factor by factor; and its memory."""
    (heads, size), (value_heads, values), n = layer.keys, layer.values, layer.factors
    bias = 0.0 if layer.qkv.conv.bias is None else layer.qkv.conv.bias
    mixed = F.silu(convolved(x @ layer.qkv.linear.weight.T, layer.qkv.conv.weight, bias))
    q, k, v = mixed.split([heads * size, n * heads * size, n * value_heads * values], -1)
    q, k, v = q.reshape(-1, heads, size), k.reshape(-1, n, heads, size), v.reshape(-1, n, value_heads, values)
    q, k = (z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    beta = (layer.max_beta * torch.sigmoid(x @ layer.beta.weight.T)).reshape(-1, n, value_heads)
    alpha = torch.ones(len(x), value_heads, dtype=x.dtype, device=x.device)
    if layer.A_log is not None:
        alpha = torch.exp(-layer.A_log.exp() * torch.log1p(torch.exp(x @ layer.step.weight.T + layer.dt_bias)))
    memory = torch.zeros(value_heads, values, size, dtype=x.dtype, device=x.device)
    reads = torch.zeros(len(x), value_heads, values, dtype=x.dtype, device=x.device)
    for h in range(value_heads):
        group = h // (value_heads // heads)
        for t in range(len(x)):
            S = alpha[t, h] * memory[h]
            for j in range(n):
                S = S + beta[t, j, h] * torch.outer(v[t, j, h] - S @ k[t, j, group], k[t, j, group])
            memory[h] = S
            reads[t, h] = S @ q[t, group] / math.sqrt(size)
    y = rms(reads, layer.norm.eps) * layer.norm.weight
    if layer.gate is not None:
        y = y * F.silu(x @ layer.gate.weight.T).reshape(y.shape)
    return y.reshape(len(x), -1) @ layer.out.weight.T, memory


OPTIONS = [
    {},
    {"factors": 1, "heads": 2},
    {"factors": 3, "fading": True, "heads": 2, "value_heads": 4, "gate": False, "max_beta": 1.0, "conv_bias": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_its_recurrence(device, options):
    layer, x = made("delta_product", device, **options), text(device, 2, 7)
    ys, memories = zip(*(written_out(layer, row) for row in x), strict=True)
    for form in layer.forms:
        y, state = layer(x, form=form)
        assert distance(y, torch.stack(ys)) < 1e-12, form
        assert distance(state.memory, torch.stack(memories)) < 1e-12, form


@pytest.mark.parametrize(("fading", "other"), [(False, "delta_net"), (True, "gated_delta_net")])
def test_with_one_factor_it_is_the_delta_rule(device, fading, other):
    product = made("delta_product", device, factors=1, fading=fading, heads=2, expand=2)
    plain = layers.build(other, D, heads=2, expand=2, max_beta=2.0, gate=True).to(device).double()
    plain.load_state_dict(product.state_dict())
    x = text(device, 2, 70)
    (y, state), (right, last) = product(x), plain(x)
    assert distance(y, right) < 1e-12 and distance(state.memory, last.memory) < 1e-12


def test_two_factors_can_turn_what_is_stored_by_any_angle(device):
    """Two reflections turn by twice the angle between their keys: here a quarter, which no single one can."""
    layer = made("delta_product", device, heads=1, head_dim=2, conv_size=0)
    with torch.no_grad():
        layer.beta.weight.zero_()
        layer.beta.weight[:, 0] = 100
        layer.qkv.linear.weight.zero_()
        # The inverse of SiLU is not needed: equal parts make a key of 45 degrees, one part alone one of 0.
        layer.qkv.linear.weight[2:6, 0] = torch.tensor([1.0, -100.0, 1.0, 1.0])
    x = torch.zeros(1, 1, D, device=device, dtype=torch.float64)
    x[..., 0] = 1
    start = layer.initial_state(1).replace(memory=torch.eye(2, device=device, dtype=torch.float64)[None, None])
    memory = layer(x, start).state.memory[0, 0]
    right = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], device=device, dtype=torch.float64)
    assert torch.allclose(memory, right, atol=1e-5)
    assert torch.allclose(
        torch.linalg.eigvals(memory).imag.abs(), torch.ones(2, device=device, dtype=torch.float64), atol=1e-5
    )
