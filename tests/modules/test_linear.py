"""Linear maps: when they draw random numbers, and in which precision they multiply."""

import pytest
import torch
import torch.nn.functional as F

from lavagna.modules.linear import Linear, LowRank, WideLinear, reset_orthogonal, reset_xavier, shrink


@pytest.mark.parametrize("make", [lambda: Linear(4, 3, bias=True), lambda: LowRank(4, 2, 3)])
def test_building_one_draws_no_random_number(make):
    before = torch.get_rng_state()
    make()
    assert torch.equal(torch.get_rng_state(), before)


def test_new_weights_fill_the_range_of_one_over_the_root_of_the_width():
    linear = Linear(400, 300, bias=True)
    linear.reset_parameters()
    assert 0.0499 < linear.weight.abs().max() <= 0.05 and not linear.bias.any()


def test_it_multiplies_and_adds(device):
    linear = Linear(4, 3, bias=True).to(device, torch.float64)
    torch.nn.init.normal_(linear.weight)
    torch.nn.init.normal_(linear.bias)
    x = torch.randn(2, 4, device=device, dtype=torch.float64)
    assert torch.allclose(linear(x), x @ linear.weight.T + linear.bias, rtol=1e-13)


@pytest.mark.parametrize("autocast", [True, False])
def test_a_wide_map_rounds_no_product_to_bfloat16(device, autocast):
    dtype = torch.float32 if autocast else torch.bfloat16
    linear = WideLinear(64, 3, bias=True)
    linear.reset_parameters()
    linear.to(device, dtype)
    x = torch.randn(5, 64, device=device).to(dtype)
    right = F.linear(x.double(), linear.weight.double(), linear.bias.double())
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        y = linear(x)
    assert y.dtype == torch.float32 and torch.allclose(y.double(), right, atol=1e-6)


def test_each_block_of_a_joined_weight_is_drawn_as_a_matrix_of_its_own():
    weight = torch.nn.Parameter(torch.empty(700, 100))
    reset_xavier(weight, [100, 600], gain=1.0)
    first, second = (block.abs().max().item() for block in weight.detach().split([100, 600]))
    assert 0.99 * (6 / 200) ** 0.5 < first <= (6 / 200) ** 0.5
    assert 0.99 * (6 / 700) ** 0.5 < second <= (6 / 700) ** 0.5


@pytest.mark.parametrize("shape", [(40, 30), (30, 40)])
def test_an_orthogonal_weight_keeps_lengths_on_its_shorter_side(shape):
    for dtype in (torch.float32, torch.bfloat16):
        weight = torch.nn.Parameter(torch.empty(shape, dtype=dtype))
        reset_orthogonal(weight, gain=0.5)
        tall = weight.detach().float() if shape[0] > shape[1] else weight.detach().float().T
        assert torch.allclose(tall.T @ tall, 0.25 * torch.eye(30), atol=1e-6 if dtype == torch.float32 else 5e-3)


def test_a_map_of_low_rank_may_bend_in_the_middle(device):
    bent, plain = LowRank(6, 2, 5, activation=torch.tanh, bias=False), LowRank(6, 2, 5)
    bent.reset_parameters()
    plain.reset_parameters()
    plain.load_state_dict(bent.state_dict(), strict=False)
    x = torch.randn(3, 6)
    assert torch.allclose(bent(x), torch.tanh(x @ bent.down.weight.T) @ bent.up.weight.T, atol=1e-6)
    assert torch.allclose(plain(x), x @ bent.down.weight.T @ bent.up.weight.T, atol=1e-6)


def test_the_sum_of_as_many_shrunk_maps_as_layers_is_as_large_as_one(device):
    weights = torch.randn(100, 30, 40, device=device, dtype=torch.float64).requires_grad_()
    whole = weights.detach().clone()
    shrink(weights, 100)
    assert torch.allclose(weights.sum(0).std(), whole.std(), rtol=0.1) and torch.allclose(10 * weights, whole)
