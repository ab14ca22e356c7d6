"""RWKV-4 against its recurrence written out, with keys of any size, and what a new one starts from."""

import math

import pytest
import torch

from lavagna import layers
from sample_layers import D, build, distance, text


def written_out(layer, x):
    """The recurrence of one sequence (t, d), numbers as they are: the output and both sums after the last step."""
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    read = {name: x * mu + before * (1 - mu) for name, mu in layer.shift.named_parameters()}
    k, v, r = (
        read[name] @ part.weight.T for name, part in (("k", layer.key), ("v", layer.value), ("r", layer.receptance))
    )
    a, b = torch.zeros_like(k[0]), torch.zeros_like(k[0])
    kept, rows = torch.exp(-torch.exp(layer.w0)), []
    for t in range(len(x)):
        now = torch.exp(layer.u + k[t])
        rows.append((a + now * v[t]) / (b + now) / (1 + torch.exp(-r[t])))
        a, b = kept * a + torch.exp(k[t]) * v[t], kept * b + torch.exp(k[t])
    return torch.stack(rows) @ layer.out.weight.T, torch.stack([a, b], -1)


@pytest.mark.parametrize("variant", ["rwkv4", "rwkv4 wide"])
def test_it_is_its_recurrence(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    y, state = layer(x)
    for row in range(2):
        right, sums = written_out(layer, x[row])
        assert distance(y[row], right) < 1e-12
        assert distance((state.memory.squeeze(-1) * state.stabilizer.exp())[row], sums) < 1e-12
        assert torch.equal(state.window[row, 0], x[row, -1])


@pytest.mark.parametrize("scale", [1e2, 1e3])
def test_keys_of_hundreds_give_the_numbers_of_float64_in_every_form(device, scale):
    layer, x = build("rwkv4", device, torch.float32), text(device, 2, 40, torch.float32)
    with torch.no_grad():
        layer.key.weight *= scale / (x @ layer.key.weight.T).abs().mean()
    twin, right = build("rwkv4", device), x.double().requires_grad_()
    twin.load_state_dict(layer.state_dict())
    true, last = twin(right, form="recurrent")
    weight = torch.randn_like(true)
    trues = torch.autograd.grad((true * weight).sum(), [right, *twin.parameters()])
    for form in layer.forms:
        ours = x.clone().requires_grad_()
        y, state = layer(ours, form=form)
        # A key of 1000 in float32 is off by 3e-5.
        assert distance(y.double(), true) < 1e-6 * scale
        assert (state.stabilizer - last.stabilizer).abs().max() < 1e-6 * scale
        grads = torch.autograd.grad((y * weight.float()).sum(), [ours, *layer.parameters()])
        for grad, wanted in zip(grads, trues, strict=True):
            assert grad.isfinite().all() and distance(grad.double(), wanted) < 1e-5 * scale


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_eight_tokens_of_nothing_are_finite(device, dtype):
    layer, x = build("rwkv4", device, dtype), torch.zeros(1, 8, D, device=device, dtype=dtype, requires_grad=True)
    for form in layer.forms:
        y, state = layer(x, form=form)
        loss = y.float().sum() + state.memory.float().sum()
        grads = torch.autograd.grad(loss, [x, *layer.parameters()])
        assert not y.any() and not state.memory[:, :, 0].any() and all(grad.isfinite().all() for grad in grads)
        # Keys of zero count each step as one, faded.
        kept = torch.exp(-torch.exp(layer.w0.double()))
        wanted = (1 - kept**8) / (1 - kept)
        ours = (state.memory[0, :, 1] * state.stabilizer[0].exp()).squeeze(-1).double()
        assert torch.allclose(ours, wanted, rtol=1e-5)


def test_a_new_layer_starts_where_the_paper_says():
    layer = layers.build("rwkv4", 64, layer_index=1, depth=3)
    assert torch.allclose(layer.w0, -5 + 8 * (torch.arange(64) / 63) ** 1.35)
    assert torch.allclose(layer.u[:4], math.log(0.3) + torch.tensor([0, 0.5, -0.5, 0]))
    now = (torch.arange(64) / 64) ** (2 / 3)
    assert torch.allclose(layer.shift.v, now + 0.15) and torch.allclose(layer.shift.r, now.sqrt())
    assert not any(part.weight.any() for part in (layer.key, layer.receptance, layer.out))
    assert torch.allclose(layer.value.weight @ layer.value.weight.T, torch.eye(64), atol=1e-5)
