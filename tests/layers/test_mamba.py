"""Mamba against its recurrence written out, the numbers of known faults, and its initial values."""

import math

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv
from lavagna import layers
from sample_layers import D, build, convolved, distance, rms, text

FORMS = ["recurrent", "scan", "chunkwise", "parallel", "auto"]


def written_out(layer, u):
    """The selective scan of one sequence (t, d), step by step and channel by channel, in the letters of the paper."""
    inner, gate, outer, bias = (0 if b is None else b for b in biases(layer))
    x = F.silu(convolved(u @ layer.x.weight.T + inner, layer.conv.weight, bias))
    rank, n, _ = layer.sizes
    s, B, C = (x @ layer.sbc.weight.T).split([rank, n, n], -1)
    if layer.norm is not None:
        s, B, C = (rms(part, layer.norm.eps) for part in (s, B, C))
    delta = torch.log1p(torch.exp(s @ layer.step.weight.T + layer.dt_bias))
    A = -torch.exp(layer.A_log)
    y = torch.zeros_like(x)
    for c in range(x.shape[1]):
        h = torch.zeros(n, dtype=u.dtype, device=u.device)
        for t in range(len(u)):
            h = torch.exp(delta[t, c] * A[c]) * h + delta[t, c] * B[t] * x[t, c]
            y[t, c] = C[t] @ h + layer.D[c] * x[t, c]
    return (y * F.silu(u @ layer.gate.weight.T + gate)) @ layer.out.weight.T + outer


def biases(layer):
    return layer.x.bias, layer.gate.bias, layer.out.bias, layer.conv.bias


@pytest.mark.parametrize("variant", ["mamba", "mamba narrow", "mamba normed"])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_its_recurrence(variant, form, device):
    layer, x = build(variant, device), text(device, 2, 7)
    assert distance(layer(x, form=form).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


def constant(device, conv_size):
    """A layer of 16 channels whose x and B are 1 at every token, with A = -1 and step sizes softplus(5)."""
    layer = layers.build("mamba", 16, expand=1, d_state=1, conv_size=conv_size).to(device).double()
    with torch.no_grad():
        for weight in (layer.step.weight, layer.conv.weight, layer.A_log):
            weight.zero_()
        layer.dt_bias.fill_(5)
        # The inverse of SiLU at 1, and a projection of sixteen ones to B = 1.
        layer.conv.bias.fill_(1.2784645427610738)
        layer.sbc.weight.fill_(1 / 16)
    return layer


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("conv_size", [1, 2, 4])
def test_no_padding_behind_five_steps_decays_their_memory(form, conv_size, device):
    """h_5 = 5.040450; three steps more of nothing would leave 1.5e-6, since softplus(0 + bias) is no step of 0."""
    layer, x = constant(device, conv_size), text(device, 1, 5).new_zeros(1, 8, 16)
    real = torch.arange(8, device=device)[None] < 5
    for state in (layer(x[:, :5], form=form).state, layer(x, mask=real, form=form).state):
        assert torch.allclose(state.memory, torch.full_like(state.memory, 5.040450), rtol=0, atol=5e-7)


@pytest.mark.parametrize("form", FORMS)
def test_a_memory_written_with_a_constant_key_has_the_gradients_of_its_sum(form, device):
    """Decay 1/2, B = 3, x = 1, h_0 = 4: what is remembered after three steps, and what each part did to it."""
    a = torch.full((1, 3, 1, 1), 0.5, dtype=torch.float64, device=device).requires_grad_()
    x = torch.ones(1, 3, 1, 1, dtype=torch.float64, device=device).requires_grad_()
    h = torch.full((1, 1, 1, 1), 4.0, dtype=torch.float64, device=device).requires_grad_()
    _, last = lv.recur(lv.diagonal(a.log()), torch.ones_like(x), torch.full_like(x, 3), x, h, form=form)
    assert math.isclose(last.item(), 0.5 + 3 * 1.75)
    # d/da_t is what was remembered before the step, fading since: h_{t-1} 0.5^(3-t), h = 4, 5, 5.5.
    right = [[0.125], [0.75, 1.5, 3.0], [1.0, 2.5, 5.5]]
    for gradient, wanted in zip(torch.autograd.grad(last, [h, x, a]), right, strict=True):
        assert gradient.flatten().tolist() == pytest.approx(wanted, rel=1e-12)


def test_a_loss_on_the_state_alone_trains_what_writes_it(device):
    layer, x = build("mamba", device), text(device, 2, 6).requires_grad_()
    start = layer(text(device, 2, 3)).state
    start = start.detach().replace(memory=start.memory.detach().requires_grad_())
    layer(x, start).state.memory.square().sum().backward()
    for name in ("A_log", "dt_bias", "x.weight", "conv.weight", "sbc.weight", "step.weight"):
        assert layer.get_parameter(name).grad.any(), name
    assert x.grad.abs().sum(-1).all() and start.memory.grad.any()


def test_a_new_layer_has_the_values_of_the_paper():
    layer = layers.build("mamba", 64)
    channels = 128
    assert layer.sizes == [4, 16, 16]
    assert torch.allclose(layer.A_log.exp(), torch.arange(1.0, 17).expand(channels, -1))
    sizes = F.softplus(layer.dt_bias)
    assert (sizes > 0.999e-3).all() and (sizes < 0.1001).all() and sizes.max() > 10 * sizes.min()
    assert (layer.D == 1).all() and 0.4 < layer.step.weight.abs().max() <= 0.5


@pytest.mark.parametrize("option", ["d_state", "conv_size", "dt_rank", "depth"])
def test_sizes_that_cannot_be_say_why(option):
    with pytest.raises(ValueError, match=f"mamba: {option} must be an int >= 1, but came as 0"):
        layers.build("mamba", D, **{option: 0})
