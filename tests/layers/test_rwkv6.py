"""RWKV-6 against its recurrence written out, and what a new one starts from."""

import math

import pytest
import torch

from lavagna import layers
from sample_layers import D, build, distance, text


def written_out(layer, x):
    """The paper's recurrence of one sequence (t, d), head by head: the output and the last memory."""
    gap = torch.cat([torch.zeros_like(x[:1]), x[:-1]]) - x
    adapter, read = layer.shift.adapter, {}
    middle = torch.tanh((x + gap * layer.shift.x) @ adapter.down.weight.T).reshape(len(x), 5, -1)
    for i, name in enumerate("wkvrg"):
        read[name] = x + gap * (getattr(layer.shift, name) + middle[:, i] @ adapter.up[i].T)
    r, k, v, g = (
        read[name] @ part.weight.T
        for name, part in (("r", layer.receptance), ("k", layer.key), ("v", layer.value), ("g", layer.gate))
    )
    rate = layer.w0 + torch.tanh(read["w"] @ layer.decay.down.weight.T) @ layer.decay.up.weight.T
    w = torch.exp(-torch.exp(rate))
    heads, size = layer.heads
    ys, memory = [], []
    for h in range(heads):
        own = slice(h * size, (h + 1) * size)
        S = torch.zeros(size, size, dtype=x.dtype, device=x.device) if layer.start is None else layer.start[h]
        rows = []
        for t in range(len(x)):
            write = torch.outer(v[t, own], k[t, own])
            o = (S + write * layer.u[h]) @ r[t, own]
            S = S * w[t, own] + write
            o = (o - o.mean()) / ((o - o.mean()).square().mean() + layer.norm.eps).sqrt()
            rows.append(o * layer.norm.weight[own] + layer.norm.bias[own])
        ys.append(torch.stack(rows))
        memory.append(S)
    return (torch.cat(ys, -1) * g * torch.sigmoid(g)) @ layer.out.weight.T, torch.stack(memory)


@pytest.mark.parametrize("variant", ["rwkv6", "rwkv6 started"])
def test_it_is_its_recurrence(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    y, state = layer(x)
    for row in range(2):
        right, memory = written_out(layer, x[row])
        assert distance(y[row], right) < 1e-12
        assert distance(state.memory[row], memory) < 1e-12
        assert torch.equal(state.window[row, 0], x[row, -1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_eight_tokens_of_nothing_are_finite_and_leave_nothing(device, dtype):
    layer, x = build("rwkv6", device, dtype), torch.zeros(1, 8, D, device=device, dtype=dtype, requires_grad=True)
    for form in layer.forms:
        y, state = layer(x, form=form)
        grads = torch.autograd.grad(y.float().sum() + state.memory.float().sum(), [x, *layer.parameters()])
        assert not state.memory.any() and y.isfinite().all() and all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("rate", [3.4, 200.0])
def test_where_all_is_forgotten_at_once_a_step_reads_the_write_before_it(device, rate):
    layer, x = build("rwkv6", device, torch.float32), text(device, 1, 70, torch.float32)
    with torch.no_grad():
        layer.w0.fill_(rate)
        layer.decay.up.weight.zero_()
    outputs = []
    for form in layer.forms:
        y, state = layer(x, form=form)
        grads = torch.autograd.grad(y.square().sum(), list(layer.parameters()))
        assert all(grad.isfinite().all() for grad in grads), form
        outputs.append(y)
        assert distance(state.memory, layer(x[:, -2:]).state.memory) < 1e-5
    assert max(distance(y, outputs[0]) for y in outputs) < 1e-5


def test_a_learned_state_is_where_every_sequence_starts_and_is_not_shared(device):
    layer = build("rwkv6 started", device)
    state = layer.initial_state(3)
    assert torch.equal(state.memory, layer.start.expand(3, -1, -1, -1))
    assert state.memory.untyped_storage().data_ptr() != layer.start.untyped_storage().data_ptr()
    (grad,) = torch.autograd.grad(layer(text(device, 2, 4)).y.square().sum(), layer.start)
    assert grad.any() and not layers.build("rwkv6", D, learned_state=True).start.any()


def test_a_new_layer_starts_where_the_paper_says():
    layer = layers.build("rwkv6", 64, head_dim=16, layer_index=1, depth=3)
    line = torch.arange(64) / 63
    assert torch.allclose(layer.w0, -6 + 5 * line**1.35)
    zigzag = torch.tensor([0.0, 0.1, -0.1]).repeat(22)[:64]
    assert torch.allclose(layer.u.flatten(), 0.5 * (1 - line) + zigzag)
    now = (torch.arange(64) / 64) ** (2 / 3)
    assert torch.allclose(layer.shift.v, 1 - now - 0.15, atol=1e-6) and torch.allclose(layer.shift.g, 1 - now.sqrt())
    assert not layer.out.weight.any() and not layer.shift.adapter.down.weight.any()
    assert torch.allclose(layer.norm.weight, torch.full((64,), (2 / 3) ** 0.7))
    assert torch.allclose(layer.key.weight @ layer.key.weight.T, 0.01 * torch.eye(64), atol=1e-6)
    assert math.isclose(layer.norm.eps, 64e-5)
