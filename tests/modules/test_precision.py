"""Widening."""

import pytest
import torch

from lavagna.modules.precision import wide


@pytest.mark.parametrize(
    ("given", "right"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_nothing_is_narrower_than_float32_and_float64_stays(given, right):
    x = torch.tensor([1.5, -2.0], dtype=given)
    assert wide(x).dtype == right and torch.equal(wide(x).to(given), x)
