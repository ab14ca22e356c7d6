"""RWKV-7 against its recurrence written out, and what a new one starts from."""

import math

import pytest
import torch

from lavagna import layers
from lavagna.modules.steps import Steps
from sample_layers import D, build, distance, text


def low_rank(part, x, f=lambda z: z):
    return f(x @ part.down.weight.T) @ part.up.weight.T


def written_out(layer, x, first=None):
    """The paper's recurrence of one sequence (t, d), head by head: the output, the last memory and the value."""
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    read = {name: x + (before - x) * getattr(layer.shift, name) for name in "rwkvag"}
    r, k, v = (x @ w.weight.T for x, w in zip((read["r"], read["k"], read["v"]),
               (layer.receptance, layer.key, layer.value), strict=True))  # fmt: skip
    if first is not None:
        v = v + (first - v) / (1 + torch.exp(-layer.v0 - low_rank(layer.residual, read["v"])))
    w = torch.exp(-0.6065306597126334 / (1 + torch.exp(-layer.w0 - low_rank(layer.decay, read["w"], torch.tanh))))
    a = 1 / (1 + torch.exp(-layer.a0 - low_rank(layer.rate, read["a"])))
    gate = low_rank(layer.gate, read["g"], torch.sigmoid)
    removed, k = k * layer.k_k, k * (1 + (a - 1) * layer.k_a)
    heads, size = layer.heads
    memory = torch.zeros(heads, size, size, dtype=x.dtype, device=x.device)
    ys = []
    for t in range(len(x)):
        rows = []
        for h in range(heads):
            own = slice(h * size, (h + 1) * size)
            S, kappa, rate, query, key, value = memory[h], removed[t, own], a[t, own], r[t, own], k[t, own], v[t, own]
            kappa = kappa / kappa.square().sum().sqrt()
            S = S * w[t, own] - torch.outer(S @ kappa, rate * kappa) + torch.outer(value, key)
            memory = torch.cat([memory[:h], S[None], memory[h + 1 :]])
            o = S @ query
            o = (o - o.mean()) / ((o - o.mean()).square().mean() + layer.norm.eps).sqrt()
            o = o * layer.norm.weight[own] + layer.norm.bias[own]
            rows.append(o + (query * key * layer.r_k[h]).sum() * value)
        ys.append(torch.cat(rows))
    y = (torch.stack(ys) * gate) @ layer.out.weight.T
    return y if layer.out.bias is None else y + layer.out.bias, memory, v


@pytest.mark.parametrize("variant", ["rwkv7", "rwkv7 ranked"])
def test_it_is_its_recurrence(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    y, state = layer(x)
    for row in range(2):
        right, memory, _ = written_out(layer, x[row])
        assert distance(y[row], right) < 1e-12
        assert distance(state.memory[row], memory) < 1e-12
        assert torch.equal(state.window[row, 0], x[row, -1])


def test_a_later_layer_mixes_in_the_first_value_of_the_model(device):
    first = build("rwkv7", device)
    later = layers.build("rwkv7", D, value_residual=True, layer_index=1, depth=2).to(device, torch.float64)
    with torch.no_grad():
        for parameter in later.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    x, other = text(device, 1, 7), text(device, 1, 7)
    steps = [Steps("rwkv7", z) for z in (x, other)]
    first.mix(x, first.initial_state(1), steps[0])
    steps[1].handed = steps[0].handed
    y, _ = later.mix(other, later.initial_state(1), steps[1])
    value = written_out(first, x[0])[2]
    assert distance(y[0], written_out(later, other[0], value)[0]) < 1e-12
    assert steps[1].handed is steps[0].handed


def test_a_later_layer_alone_says_what_it_lacks(device):
    layer = layers.build("rwkv7", D, value_residual=True).to(device)
    with pytest.raises(ValueError, match="rwkv7: value_residual=True .* none was handed on.*value_residual=False"):
        layer(text(device, 1, 3, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_eight_tokens_of_nothing_are_finite_and_leave_nothing(device, dtype):
    layer, x = build("rwkv7", device, dtype), torch.zeros(1, 8, D, device=device, dtype=dtype, requires_grad=True)
    for form in layer.forms:
        y, state = layer(x, form=form)
        grads = torch.autograd.grad(y.float().sum() + state.memory.float().sum(), [x, *layer.parameters()])
        assert not state.memory.any() and y.isfinite().all()
        assert all(grad.isfinite().all() for grad in grads)


def test_keys_of_zero_leave_a_memory_to_fade_with_zero_gradient_through_their_direction(device):
    layer, x = build("rwkv7", device), text(device, 1, 5)
    with torch.no_grad():
        layer.key.weight.zero_()
    start = layer.initial_state(1)
    start = start.replace(memory=torch.randn_like(start.memory))
    y, state = layer(x, start)
    before = torch.cat([start.window, x[:, :-1]], 1)
    xw = x + (before - x) * layer.shift.w
    log_decay = -math.exp(-0.5) * torch.sigmoid(layer.w0 + low_rank(layer.decay, xw, torch.tanh))
    faded = start.memory * log_decay.sum(1).exp().reshape(1, layer.heads.count, 1, layer.heads.size)
    assert distance(state.memory, faded) < 1e-12
    grads = torch.autograd.grad(y.square().sum(), list(layer.parameters()))
    assert all(grad.isfinite().all() and grad.abs().max() < 1e6 for grad in grads)


def test_no_channel_keeps_less_than_half_and_decays_are_spread():
    layer = layers.build("rwkv7", 256, layer_index=1, depth=4)
    kept = torch.exp(-math.exp(-0.5) * torch.sigmoid(layer.w0))
    assert (kept > math.exp(-math.exp(-0.5))).all() and (kept < 1).all()
    assert kept.min() < 0.75 and kept.max() > 0.995


def test_a_new_layer_starts_where_the_paper_says():
    layer = layers.build("rwkv7", 128, layer_index=1, depth=4)
    ranks = [part.down.weight.shape[0] for part in (layer.decay, layer.rate, layer.gate)]
    assert ranks == [32, 32, 64] and not any(part.down.weight.any() for part in (layer.decay, layer.rate, layer.gate))
    assert not layer.out.weight.any() and layer.norm.eps == 64e-5
    assert torch.allclose(layer.norm.weight, torch.full((128,), 0.5**0.7))
    # Channel 96 is the middle of the second head's upper half: a wave of (1 / 63)^2.
    line, wave = 96 / 127, (1 / 63) ** 2
    assert math.isclose(layer.w0[96].item(), -6 + 6 * line ** (1 + (1 / 3) ** 0.3) + 0.5 + 2.5 * wave, rel_tol=1e-5)
    assert math.isclose(layer.a0[96].item(), -0.19 + 0.3 * wave + 0.4 * (line - 0.5), rel_tol=1e-5)
    assert math.isclose(layer.k_k[96].item(), 0.71 - 0.1 * (line - 0.5), rel_tol=1e-5)
    assert math.isclose(layer.shift.a[32].item(), 1 - 0.25 ** (0.9 * 0.75), rel_tol=1e-5)
    up = layer.gate.up.weight
    assert torch.allclose(up.T @ up, 0.01 * torch.eye(64), atol=1e-6)


def test_a_model_of_one_layer_with_heads_of_one_channel_has_finite_values():
    layer = layers.build("rwkv7", 16, head_dim=1, depth=1)
    assert all(parameter.isfinite().all() for parameter in layer.parameters())
    assert layer(torch.randn(1, 3, 16)).y.isfinite().all()
