"""What float16 must hold: reads and products beyond 65504 that a norm or a division brings down again."""

import copy

import pytest
import torch

from lavagna import layers

NORMED = ["rwkv5", "rwkv6", "rwkv7", "retention", "gla", "fast_weight"]


@pytest.mark.parametrize("name", NORMED)
def test_a_read_that_is_normed_may_be_larger_than_float16_holds(name, device):
    layer = layers.build(name, 32).to(device)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        layer.out.weight *= 1e-2
    x = 300 * torch.randn(2, 5, 32, device=device)
    layer, x = layer.half(), x.half()
    if name == "rwkv7":
        # Behind its norm there are a bonus and a gate, which nothing brings down.
        layer.r_k.data *= 1e-3
        layer.gate.up.weight.data *= 1e-2
    right = copy.deepcopy(layer).double()(x.double()).y
    got = layer(x).y
    assert got.dtype == torch.float16
    assert (got - right).abs().max() < 2e-2 * right.abs().max()
