"""Feature maps."""

import pytest
import torch

from lavagna.modules.feature_map import FEATURE_MAPS, NEVER_NEGATIVE, dpfp, feature_map


@pytest.mark.parametrize("name", FEATURE_MAPS)
def test_those_that_are_listed_as_never_negative_are_the_ones_that_never_are(name):
    x = torch.linspace(-50, 50, 1001, dtype=torch.float64)
    assert bool((feature_map("layer", name)(x) >= 0).all()) == (name in NEVER_NEGATIVE)


def test_elu_plus_one_is_the_exponential_below_zero_and_a_line_above():
    x = torch.tensor([-2.0, 3.0], dtype=torch.float64)
    assert torch.allclose(feature_map("layer", "elu_plus_one")(x), torch.stack([x[0].exp(), x[1] + 1]), rtol=1e-14)


def test_an_unknown_name_lists_the_legal_ones():
    with pytest.raises(ValueError, match="layer: feature_map must be one of identity, elu_plus_one, relu"):
        feature_map("layer", "softmax")


def test_products_of_neighbors_are_those_of_the_paper(device):
    """nu = 2 of (1, -2): r = (1, 0, 0, 2), times r one place and two places on."""
    features = dpfp(torch.tensor([1.0, -2.0], device=device), 2)
    assert features.tolist() == [2.0, 0, 0, 0, 0, 0, 0, 0]
    x = torch.randn(7, 5, device=device, dtype=torch.float64)
    r = torch.cat([x.clamp_min(0), (-x).clamp_min(0)], -1)
    right = torch.stack([r[:, i] * r[:, i - j] for j in (1, 2, 3) for i in range(10)], -1)
    assert torch.equal(dpfp(x, 3), right) and (right >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_elu_plus_one_keeps_its_digits_far_below_zero(dtype):
    x = torch.tensor([-0.01, -3.0, -20.0, -60.0], dtype=dtype)
    right = x.double().exp()
    got = feature_map("layer", "elu_plus_one")(x)
    assert ((got - right).abs() / right).max() < 2 * torch.finfo(dtype).eps
