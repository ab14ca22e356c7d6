"""The cost of LSSL: what is measured is there, and the claim can fail."""

import pytest

from lavagna.reproduce import lssl_cost
from lavagna.reproduce.lssl_cost import Cost

SECONDS, BYTES = (0.1, 1.0, 10.0), (1e7, 1e8, 1e9)


def rows(monkeypatch, dense, ours):
    """The rows that these costs, width by width, would make."""
    costs = {
        "lssl": dict(zip(lssl_cost.WIDTHS, dense, strict=True)),
        "s4": dict(zip(lssl_cost.WIDTHS, ours, strict=True)),
    }
    monkeypatch.setattr(lssl_cost, "measured", lambda name, width, device, seed: costs[name][width])
    return lssl_cost.rows()


def test_each_width_has_a_ratio_of_times_and_one_of_memories(monkeypatch):
    found = rows(monkeypatch, map(Cost, SECONDS, BYTES), [Cost(0.05, 5e6)] * 3)
    assert [row.ours for row in found] == pytest.approx([2, 2, 20, 20, 200, 200])
    assert [round(row.published, 1) for row in found] == [2.0, 41.9, 6.7, 133.7, 29.6, 392.2]
    assert all(row.holds for row in found) and "width 512" in found[5].quantity and "1000 / 5.0 MB" in found[5].quantity


@pytest.mark.parametrize(
    ("ours", "held"),
    [
        ([Cost(0.2, 2e7), Cost(2, 2e8), Cost(20, 2e9)], [False] * 6),
        ([Cost(0.05, 5e6), Cost(0.5, 5e7), Cost(5, 5e8)], [True, True] + [False] * 4),
        ([Cost(0.05, 5e6), Cost(0.05, 2e8), Cost(0.05, 1e6)], [True, True, True, False, True, True]),
    ],
)
def test_a_row_fails_where_s4_is_behind_or_no_further_ahead_than_before(monkeypatch, ours, held):
    assert [row.holds for row in rows(monkeypatch, map(Cost, SECONDS, BYTES), ours)] == held


def test_a_process_measures_a_step_that_holds_at_least_its_matrices(device):
    # Of a narrower layer all would fit into memory that the process had before and had not given back.
    seconds, taken = lssl_cost.measured("lssl", 128, device.type, 0, patience=0.0)
    # 128 channels' matrices in float64, and five powers of each in float32.
    assert taken > 128**3 * (8 + 5 * 4) and 0 < seconds < 60


def test_a_step_that_ends_in_an_error_says_so():
    with pytest.raises(
        RuntimeError, match="lssl_cost: s5x of width 64 did not finish a step: .*there is no layer 's5x'"
    ):
        lssl_cost.measured("s5x", 64, "cpu", 0)


@pytest.mark.slow
def test_s4_costs_less_than_lssl_already_at_width_128(device):
    dense, ours = (lssl_cost.measured(name, 128, device.type, 0) for name in ("lssl", "s4"))
    assert ours.seconds < dense.seconds and ours.bytes < dense.bytes
