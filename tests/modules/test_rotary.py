"""Rotary positions: only distances are told, and far positions keep their angle."""

import math

import pytest
import torch

from lavagna.modules.rotary import closed, rotate, standard, turn

PAIRS = ["halves", "interleaved"]


def at(position, device):
    return torch.tensor([[position]], device=device)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("exponents", [standard(6), closed(6)])
def test_only_the_distance_of_two_positions_is_told(device, pairs, exponents):
    q, k = torch.randn(2, 1, 1, 3, 6, device=device, dtype=torch.float64)
    exponents = exponents.to(device)
    meet = [
        (rotate(q, at(i, device), exponents, pairs=pairs) * rotate(k, at(j, device), exponents, pairs=pairs)).sum(-1)
        for i, j in ((7, 3), (1004, 1000), (4, 0), (5, 0))
    ]
    assert torch.allclose(meet[0], meet[1], rtol=1e-10) and torch.allclose(meet[0], meet[2], rtol=1e-10)
    assert not torch.allclose(meet[2], meet[3], rtol=1e-2)


def test_interleaved_pairs_are_complex_numbers_and_halves_the_same_in_another_order(device):
    x = torch.randn(1, 1, 1, 6, device=device, dtype=torch.float64)
    angles = 5 * 10000.0 ** -standard(6, device=device)
    right = torch.view_as_real(
        torch.view_as_complex(x.unflatten(-1, (3, 2))) * torch.polar(torch.ones_like(angles), angles)
    )
    turned = rotate(x, at(5, device), standard(6, device=device), pairs="interleaved")
    assert torch.allclose(turned, right.flatten(-2), rtol=1e-13)
    order = torch.tensor([0, 2, 4, 1, 3, 5], device=device)
    halves = rotate(x[..., order], at(5, device), standard(6, device=device))
    assert torch.allclose(halves, turned[..., order], rtol=1e-13)


def test_exponents_run_below_one_or_up_to_one():
    assert standard(8).tolist() == [0, 0.25, 0.5, 0.75]
    assert torch.allclose(closed(8), torch.tensor([0, 1 / 3, 2 / 3, 1], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_far_position_is_turned_by_its_exact_angle(device, dtype):
    x = torch.tensor([1.0, 0.0], device=device, dtype=dtype).reshape(1, 1, 1, 2)
    for position in (2047, 123_456_789):
        turned = rotate(x, at(position, device), standard(2, device=device)).flatten()
        right = torch.tensor([math.cos(position), math.sin(position)], device=device)
        assert torch.allclose(turned.float(), right, atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("pairs", PAIRS)
def test_turning_by_the_angles_of_a_position_is_rotating_to_it(device, pairs):
    x = torch.randn(1, 1, 3, 6, device=device, dtype=torch.float64)
    exponents = standard(6, device=device)
    turned = turn(x, 5 * 10000**-exponents, pairs=pairs)
    assert torch.allclose(turned, rotate(x, at(5, device), exponents, pairs=pairs), rtol=1e-12)
    # With fewer angles than pairs the first pairs turn as before and the others stay.
    fewer = turn(x, 5 * 10000 ** -exponents[:1], pairs=pairs)
    one = [0, 3] if pairs == "halves" else [0, 1]
    rest = [i for i in range(6) if i not in one]
    assert torch.equal(fewer[..., one], turned[..., one]) and torch.equal(fewer[..., rest], x[..., rest])


@pytest.mark.parametrize("pairs", PAIRS)
def test_with_few_exponents_only_the_first_channels_turn(device, pairs):
    x, place = torch.randn(1, 1, 2, 8, device=device), at(3, device)
    y = rotate(x, place, standard(4, device=device), pairs=pairs)
    assert torch.equal(y[..., 4:], x[..., 4:])
    assert torch.equal(y[..., :4], rotate(x[..., :4], place, standard(4, device=device), pairs=pairs))
    assert torch.equal(rotate(x, place, standard(0, device=device), pairs=pairs), x)
