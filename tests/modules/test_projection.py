"""Queries, keys and values from one projection."""

import pytest
import torch
import torch.nn.functional as F

from lavagna.modules.heads import Heads
from lavagna.modules.projection import QKV
from lavagna.modules.steps import Steps
from lavagna.state import State


def run(device, conv_size):
    qkv = QKV("layer", 6, Heads(2, 3), Heads(4, 5), conv_size=conv_size)
    qkv.reset_parameters()
    qkv.to(device, torch.float64)
    x = torch.randn(1, 4, 6, device=device, dtype=torch.float64)
    empty = qkv.initial_tensors(1, device, x.dtype) | {"tokens_seen": torch.zeros(1, dtype=torch.int64, device=device)}
    return qkv, x, qkv(x, State("layer", empty), Steps("layer", x))


def test_without_a_convolution_it_is_the_projection_alone(device):
    qkv, x, (q, k, v, tensors) = run(device, 0)
    joined = torch.cat([z.flatten(2) for z in (q, k, v)], -1)
    assert torch.allclose(joined, x @ qkv.linear.weight.T, rtol=1e-12) and not tensors
    assert q.shape == k.shape == (1, 4, 2, 3) and v.shape == (1, 4, 4, 5)


def test_with_a_convolution_its_window_holds_what_came_before_the_silu(device):
    qkv, x, (q, _, _, tensors) = run(device, 2)
    projected = x @ qkv.linear.weight.T
    taps = qkv.conv.weight
    last = F.silu(projected[:, 2] * taps[:, 0] + projected[:, 3] * taps[:, 1])
    assert torch.allclose(q[:, 3].flatten(1), last[:, :6], rtol=1e-12)
    assert torch.allclose(tensors["window"], projected[:, 3:], rtol=1e-12)


def test_a_negative_width_is_refused():
    with pytest.raises(ValueError, match="layer: conv_size must be an int >= 0"):
        QKV("layer", 6, Heads(2, 3), Heads(2, 3), conv_size=-4)
