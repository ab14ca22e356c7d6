"""The floor and the clock."""

import pytest
import torch

from lavagna.bench.clock import medians, one_thread
from lavagna.bench.floor import floor_flops


@pytest.mark.parametrize(
    ("size", "corrects", "gflop"), [(64, False, 0.27), (64, True, 0.47), (128, False, 0.81), (128, True, 1.34)]
)
def test_the_floor_is_the_one_agreed_on(size, corrects, gflop):
    assert floor_flops(2048, 4, size, size, 64, corrects=corrects) / 1e9 == pytest.approx(gflop, abs=0.006)


def test_jobs_are_measured_in_turn():
    order = []
    medians({name: lambda name=name: order.append(name) for name in "ab"}, rounds=2)
    assert order == list("ab") * 3


def test_the_threads_are_given_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
