"""The claim about RetNet's rescalings can fail."""

import pytest
import torch

from lavagna.layers import build
from lavagna.reproduce import rescalings


@pytest.fixture
def reads():
    """Of one layer, all steps at once, and in the published order in chunks of 4 and of all."""
    layer = build("retention", 32, heads=2, rescale="paper").double()
    x = 30 * torch.randn(16, 32, dtype=torch.float64)
    given = (*rescalings.queries_keys_values(layer, x), layer.log_gamma())
    return rescalings.parallel(*given), [rescalings.in_chunks(*given, chunk) for chunk in (4, 16)]


def test_in_the_published_order_each_read_is_the_same_but_for_a_positive_factor(reads):
    right, others = reads
    for read in others:
        factors = (read / right).median(-1, keepdim=True).values
        assert (factors > 0).all() and torch.allclose(read, factors * right, rtol=1e-9)
    factors = (others[0] / right).median(-1).values
    assert factors.min() < 0.9 * factors.max()


def test_an_order_that_divides_by_the_right_sums_is_found_out(monkeypatch):
    monkeypatch.setattr(rescalings, "in_chunks", lambda *given: rescalings.parallel(*given[:-1]))
    found = [row for row in rescalings.rows() if "published order" in row.quantity]
    assert [row.holds for row in found] == [False, False, True]


def test_a_divisor_that_is_a_little_off_is_found_out(monkeypatch):
    honest = rescalings.parallel
    monkeypatch.setattr(rescalings, "parallel", lambda *given: 1.001 * honest(*given))
    found = [row for row in rescalings.rows() if "ours in chunks" in row.quantity]
    assert [row.holds for row in found] == [False, False, True]
