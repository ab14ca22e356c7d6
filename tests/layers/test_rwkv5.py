"""RWKV-5 in its three versions against its recurrence written out, and what a new one starts from."""

import copy

import pytest
import torch

from lavagna import layers
from sample_layers import D, build, distance, text


def written_out(layer, x):
    """The recurrence of one sequence (t, d), head by head: the output and the last memory."""
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    read = {name: x * mu + before * (1 - mu) for name, mu in layer.shift.named_parameters()}
    r, k, v = (
        read[name] @ part.weight.T for name, part in (("r", layer.receptance), ("k", layer.key), ("v", layer.value))
    )
    w, u = torch.exp(-torch.exp(layer.w0)), layer.u.exp() if layer.version == "5.0" else layer.u
    heads, size = layer.heads
    ys, memory = [], []
    for h in range(heads):
        own, rows = slice(h * size, (h + 1) * size), []
        S = torch.zeros(size, size, dtype=x.dtype, device=x.device)
        for t in range(len(x)):
            write = torch.outer(v[t, own], k[t, own])
            o = (S + write * u[h]) @ r[t, own]
            S = S * w[h] + write
            # As published: divided by 8, and normalized with a smaller eps.
            o = o / 8
            o = (o - o.mean()) / ((o - o.mean()).square().mean() + 1e-5).sqrt()
            rows.append(o * layer.norm.weight[own] + layer.norm.bias[own])
        ys.append(torch.stack(rows))
        memory.append(S)
    y = torch.cat(ys, -1)
    if layer.version != "5.0":
        g = read["g"] @ layer.gate.weight.T
        y = y * g * torch.sigmoid(g)
    return y @ layer.out.weight.T, torch.stack(memory)


@pytest.mark.parametrize("variant", ["rwkv5", "rwkv5 first", "rwkv5 gated"])
def test_it_is_its_recurrence(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    y, state = layer(x)
    for row in range(2):
        right, memory = written_out(layer, x[row])
        assert distance(y[row], right) < 1e-12
        assert distance(state.memory[row], memory) < 1e-12
        assert torch.equal(state.window[row, 0], x[row, -1])


def test_a_head_whose_channels_fade_alike_is_a_head_of_version_5_1(device):
    head, channel = build("rwkv5 gated", device), layers.build("rwkv5", D, head_dim=8).to(device, torch.float64)
    tensors = head.state_dict()
    channel.load_state_dict(tensors | {name: tensors[name].expand(4, 8) for name in ("w0", "u")})
    x = text(device, 1, 20)
    assert distance(channel(x).y, head(x).y) < 1e-12


@pytest.mark.parametrize("version", ["5.0", "5.1", "5.2"])
def test_eight_tokens_of_nothing_are_finite_and_leave_nothing(device, version):
    layer = layers.build("rwkv5", D, version=version).to(device)
    x = torch.zeros(1, 8, D, device=device, requires_grad=True)
    y, state = layer(x)
    grads = torch.autograd.grad(y.sum() + state.memory.sum(), [x, *layer.parameters()])
    assert not state.memory.any() and y.isfinite().all() and all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("u", [-100.0, 30.0, 100.0, 300.0])
def test_a_bonus_beyond_all_floats_is_the_recurrence_in_float64(device, u):
    layer, x = build("rwkv5 first", device), text(device, 2, 9)
    with torch.no_grad():
        layer.u += u
        # A step without a bonus, because its key is zero, and one without anything: the others differ by e^u from it.
        x[0, 3:5] = 0
    leaves = [x.requires_grad_(), *layer.parameters()]
    right = torch.stack([written_out(layer, row)[0] for row in x])
    grads = torch.autograd.grad(right.sum(), leaves)
    narrow, single = copy.deepcopy(layer).float(), x.detach().float().requires_grad_()
    y = narrow(single).y
    assert distance(y.double(), right) < 1e-5
    # Some gradients are zero as sums of what is as large as the others.
    largest = max(wanted.abs().max() for wanted in grads)
    for ours, wanted in zip(torch.autograd.grad(y.sum(), [single, *narrow.parameters()]), grads, strict=True):
        assert ours.isfinite().all() and (ours - wanted).abs().max() < 1e-4 * largest
    assert not narrow(torch.zeros_like(single)).y.isnan().any()


def test_a_new_layer_starts_where_the_paper_says():
    layer = layers.build("rwkv5", 64, head_dim=16, layer_index=2, depth=3)
    line = (torch.arange(64) / 63).reshape(4, 16)
    assert torch.allclose(layer.w0, -6 + 5 * line**2)
    zigzag = torch.tensor([0.0, 0.1, -0.1]).repeat(22)[:64].reshape(4, 16)
    assert torch.allclose(layer.u, 1 - line + zigzag)
    now = (torch.arange(64) / 64) ** (1 / 3)
    assert torch.allclose(layer.shift.v, now + 0.3) and torch.allclose(layer.shift.r, now.sqrt())
    assert not layer.out.weight.any()
    of_heads = layers.build("rwkv5", 64, head_dim=16, version="5.0", layer_index=2, depth=3)
    assert torch.allclose(of_heads.w0.flatten(), -6 + 5 * (torch.arange(4) / 3) ** 2)
    assert (of_heads.u == -3).all() and of_heads.gate is None
