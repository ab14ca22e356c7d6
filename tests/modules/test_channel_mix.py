"""RWKV's channel mixes against their formulas, and what a new one starts from."""

import pytest
import torch

from lavagna.modules import channel_mix
from lavagna.modules.steps import Steps

VERSIONS = {"rwkv4": channel_mix.rwkv4, "rwkv6": channel_mix.rwkv6, "rwkv7": channel_mix.rwkv7}
every = pytest.mark.parametrize("version", VERSIONS)


def mix_of(version, device):
    mix = VERSIONS[version](6, 16, layer_index=1, depth=3)
    mix.reset_parameters()
    with torch.no_grad():
        for parameter in mix.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return mix.to(device, torch.float64)


@every
def test_it_is_its_formula_step_by_step(version, device):
    mix, x = mix_of(version, device), torch.randn(1, 5, 6, device=device, dtype=torch.float64)
    before, rows = torch.zeros_like(x[0, 0]), []
    for now in x[0]:
        read = {
            name: mu * now + (1 - mu) * before if version == "rwkv4" else now + mu * (before - now)
            for name, mu in mix.shift.named_parameters()
        }
        hidden = torch.clamp(mix.key.weight @ read["k"], min=0) ** 2
        y = mix.value.weight @ hidden
        rows.append(y if version == "rwkv7" else y / (1 + torch.exp(-mix.receptance.weight @ read["r"])))
        before = now
    y, tensors = mix(x, mix.initial_tensors(1, x.device, x.dtype), Steps("mix", x))
    assert torch.allclose(y[0], torch.stack(rows), atol=1e-13)
    assert torch.equal(tensors["window"], x[:, -1:])


@every
def test_a_new_one_adds_nothing_and_learns_from_the_first_step(version):
    mix = VERSIONS[version](8, 32, layer_index=2, depth=4)
    mix.reset_parameters()
    x = torch.randn(2, 5, 8)
    y, _ = mix(x, mix.initial_tensors(2, x.device, x.dtype), Steps("mix", x))
    y.sum().backward()
    assert not y.any() and mix.value.weight.grad.any() and mix.last is None


@every
def test_the_widest_matrix_starts_as_published(version):
    mix = VERSIONS[version](8, 32, layer_index=2, depth=4)
    mix.reset_parameters()
    weight = mix.key.weight
    if version == "rwkv7":
        assert 0.9 < weight.abs().max() / (0.5 * 8**-0.5) <= 1
    else:
        assert torch.allclose(weight.T @ weight, (4 if version == "rwkv4" else 1) * torch.eye(8), atol=1e-5)
    power = {"rwkv4": 0.5, "rwkv6": 0.125, "rwkv7": 0.0625}[version]
    now = (torch.arange(8) / 8) ** power
    assert torch.allclose(mix.shift.k, now if version == "rwkv4" else 1 - now)


@every
def test_half_precision_is_near_float64(version, device):
    mix, x = mix_of(version, device).bfloat16(), torch.randn(2, 9, 6, device=device).bfloat16()
    y, tensors = mix(x, mix.initial_tensors(2, x.device, x.dtype), Steps("mix", x))
    assert y.dtype == tensors["window"].dtype == torch.bfloat16
    right, _ = mix.double()(x.double(), mix.initial_tensors(2, x.device, torch.float64), Steps("mix", x))
    assert (y - right).abs().max() < 0.03 * right.abs().max()
