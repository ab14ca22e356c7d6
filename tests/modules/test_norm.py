"""Norms: what they divide by, over which span, before or after which gate."""

import math

import pytest
import torch
import torch.nn.functional as F

from lavagna.modules.activation import ACTIVATIONS
from lavagna.modules.linear import Linear
from lavagna.modules.norm import GatedRMSNorm, GroupedRMSNorm, HeadNorm, LayerNorm, RMSNorm, shares, unit

# SiLU of this is 1: an open gate.
OPEN = 1.2784645427610738


def ready(module, device, dtype=torch.float64):
    module.reset_parameters()
    return module.to(device, dtype)


def test_a_normed_vector_has_mean_square_one(device):
    x = 7 * torch.randn(2, 3, 4, 6, device=device, dtype=torch.float64)
    y = ready(RMSNorm(6, eps=0.0), device)(x)
    assert torch.allclose(y.square().mean(-1), torch.ones_like(y[..., 0]), rtol=1e-14)
    assert torch.allclose(y, F.rms_norm(x, (6,), eps=0.0), rtol=1e-13)


def test_the_gate_comes_after_the_norm(device):
    norm = ready(GatedRMSNorm(6), device)
    with torch.no_grad():
        norm.weight.copy_(torch.arange(6) + 1.0)
    x, gate = torch.randn(2, 5, 6, device=device, dtype=torch.float64)
    right = F.rms_norm(x, (6,), norm.weight, eps=1e-5) * gate * torch.sigmoid(gate)
    assert torch.allclose(norm(x, gate), right, rtol=1e-13)


@pytest.mark.parametrize("gate", [None, Linear(7, 12)], ids=["plain", "gated"])
def test_what_heads_read_becomes_channels_each_heads_norm_for_itself(device, gate):
    norm, gate = ready(GatedRMSNorm(6), device), gate and ready(gate, device)
    o, x = (torch.randn(2, 5, *axes, device=device, dtype=torch.float64) for axes in ((2, 6), (7,)))
    channels = norm.channels(o, gate, x).split(6, -1)
    gates = [1, 1] if gate is None else F.silu(gate(x)).split(6, -1)
    for head in range(2):
        assert torch.allclose(channels[head], norm(o[:, :, head]) * gates[head], rtol=1e-13)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_gate_may_have_another_activation(device, activation):
    right = {
        "silu": lambda x: x / (1 + (-x).exp()),
        "sigmoid": lambda x: 1 / (1 + (-x).exp()),
        "relu": lambda x: x.clamp_min(0),
        "gelu": lambda x: x * (1 + (x / 2**0.5).erf()) / 2,
        "gelu_tanh": lambda x: x * (1 + ((2 / math.pi) ** 0.5 * (x + 0.044715 * x**3)).tanh()) / 2,
    }[activation]
    norm = ready(GatedRMSNorm(6, activation=activation), device)
    x, gate = torch.randn(2, 5, 6, device=device, dtype=torch.float64)
    assert torch.allclose(norm(x, gate), F.rms_norm(x, (6,), eps=1e-5) * right(gate), rtol=1e-12, atol=1e-14)


def test_in_mamba_2_the_gate_comes_before_the_norm(device):
    norm = ready(GroupedRMSNorm(6), device)
    x, gate = torch.randn(2, 5, 6, device=device, dtype=torch.float64)
    assert torch.allclose(norm(x, gate), F.rms_norm(x * F.silu(gate), (6,), eps=1e-5), rtol=1e-13)


def test_the_norm_may_come_before_the_gate_in_mamba_2_too(device):
    norm = ready(GroupedRMSNorm(6, groups=2, norm_before_gate=True), device)
    x, gate = torch.randn(2, 5, 6, device=device, dtype=torch.float64)
    right = F.rms_norm(x.unflatten(-1, (2, 3)), (3,), eps=1e-5).flatten(-2) * F.silu(gate)
    assert torch.allclose(norm(x, gate), right, rtol=1e-13)


@pytest.mark.parametrize(
    ("groups", "right"),
    [(2, (0.848528, 1.131371, 0.848528, 1.131371)), (1, (0.1194, 0.1592, 1.1940, 1.5921))],
)
def test_a_grouped_norm_spans_its_group_only(device, groups, right):
    x = torch.tensor([3.0, 4, 30, 40], device=device, dtype=torch.float64)
    y = ready(GroupedRMSNorm(4, groups=groups, eps=0.0), device)(x, torch.full_like(x, OPEN))
    assert torch.allclose(y, torch.tensor(right, device=device, dtype=torch.float64), atol=5e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_a_norm_of_each_head_is_the_norm_of_as_many_groups(device, bias):
    norm, plus_one = (ready(HeadNorm(3, 4, bias=bias, zero_centered=zero, eps=1e-3), device) for zero in (False, True))
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter += torch.randn_like(parameter)
        plus_one.load_state_dict(norm.state_dict())
        plus_one.weight.sub_(1)
    x = torch.randn(2, 5, 3, 4, device=device, dtype=torch.float64)
    right = F.group_norm(x.reshape(10, 12), 3, norm.weight, norm.bias, eps=1e-3).reshape(x.shape)
    assert torch.allclose(norm(x), right, rtol=1e-12, atol=1e-14)
    assert torch.allclose(plus_one(x), right, rtol=1e-12, atol=1e-14)


def test_a_norm_of_each_head_has_finite_gradients_where_a_head_is_constant_and_far_from_float16(device):
    x = torch.full((1, 1, 2, 6), 1000.0, device=device, dtype=torch.float16, requires_grad=True)
    y = ready(HeadNorm(2, 6), device, torch.float16)(x)
    y.sum().backward()
    assert y.dtype == torch.float16 and not y.any() and x.grad.isfinite().all()


@pytest.mark.parametrize("norm", [RMSNorm, GatedRMSNorm, GroupedRMSNorm])
def test_squares_beyond_float16_do_not_overflow(device, norm):
    x = torch.full((1, 6), 1000.0, device=device, dtype=torch.float16)
    gates = () if norm is RMSNorm else (torch.full_like(x, OPEN),)
    y = ready(norm(6), device, torch.float16)(x, *gates)
    assert y.dtype == torch.float16 and torch.allclose(y.float(), torch.ones(1, 6, device=device), rtol=2e-3)


def test_a_unit_vector_is_one_long_and_a_zero_one_has_a_finite_gradient(device):
    x = torch.randn(4, 6, device=device, dtype=torch.float64)
    assert torch.allclose(unit(x, eps=0.0).norm(dim=-1), torch.ones(4, device=device, dtype=torch.float64), rtol=1e-14)
    zero = torch.zeros(1, 6, device=device, requires_grad=True)
    unit(zero).sum().backward()
    assert not unit(zero).any() and zero.grad.isfinite().all()


def test_layer_norm_takes_the_mean_away_and_divides_by_the_deviation(device):
    for bias in (True, False):
        norm = LayerNorm(6, eps=1e-3, bias=bias)
        norm.reset_parameters()
        norm.to(device, torch.float64)
        with torch.no_grad():
            for parameter in norm.parameters():
                parameter += torch.randn_like(parameter)
        x = torch.randn(2, 5, 6, device=device, dtype=torch.float64)
        far = x - x.mean(-1, keepdim=True)
        wanted = far / (far.square().mean(-1, keepdim=True) + 1e-3).sqrt() * norm.weight
        assert torch.allclose(norm(x), wanted + (norm.bias if bias else 0), rtol=1e-12)
        assert norm.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_a_zero_centered_norm_is_the_plain_one_with_one_added_to_its_weight(device):
    norm, plain = RMSNorm(6, zero_centered=True), RMSNorm(6)
    for one in (norm, plain):
        one.reset_parameters()
        one.to(device, torch.float64)
    x = torch.randn(2, 5, 6, device=device, dtype=torch.float64)
    assert not norm.weight.any() and torch.equal(norm(x), plain(x))
    with torch.no_grad():
        norm.weight.copy_(torch.randn(6))
        plain.weight.copy_(1 + norm.weight)
    assert torch.equal(norm(x), plain(x))


def test_shares_add_up_to_one_and_a_zero_vector_has_a_finite_gradient(device):
    x = torch.randn(4, 6, device=device, dtype=torch.float64)
    assert torch.allclose(shares(x).abs().sum(-1), torch.ones(4, device=device, dtype=torch.float64), rtol=1e-14)
    zero = torch.zeros(1, 6, device=device, requires_grad=True)
    shares(zero).sum().backward()
    assert not shares(zero).any() and zero.grad.isfinite().all()
