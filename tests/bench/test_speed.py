"""The speed that the bounds promise, as ratios to a matrix product measured in the same moments."""

import pytest

from lavagna.bench.decoding import decoding_rows
from lavagna.bench.forms import BOUNDS, form_rows


def held(name: str, size: int) -> dict[str, float]:
    """Each direction's best ratio over its bound, of up to three measurements: a busy machine is slow, never fast."""
    best: dict[str, float] = {}
    for _ in range(3):
        for row in form_rows([name], sizes=[size], loop_rounds=0):
            assert row.bound is not None
            best[row.direction] = min(row.ratio / row.bound, best.get(row.direction, float("inf")))
        if max(best.values()) <= 1:
            break
    return best


@pytest.mark.parametrize("name", ["scalar", "diagonal", "gated_householder"])
def test_a_form_stays_within_its_bound(name):
    assert max(held(name, 64).values()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("name", BOUNDS)
def test_every_form_stays_within_its_bound(name, size):
    assert max(held(name, size).values()) <= 1


def test_the_memory_of_a_token_does_not_grow():
    early, late = decoding_rows(["gated_delta_net"], at=(10, 1000), tokens=2, rounds=1)
    assert late.state_bytes == early.state_bytes


@pytest.mark.slow
def test_the_time_of_a_token_does_not_grow():
    for layer in ("gla", "gated_delta_net", "mamba2"):
        _, late = decoding_rows([layer])
        assert late.state_ratio == 1
        assert late.time_ratio < 1.2
