"""The claims about RWKV can fail: rules that are a little off are found out."""

import torch

from lavagna.layers import rwkv7
from lavagna.reproduce import eigenvalues, rwkv_average


def test_a_bonus_that_is_a_little_off_is_found_out(monkeypatch):
    monkeypatch.setattr(rwkv_average, "BONUS", 2.0001)
    assert not any(found.holds for found in rwkv_average.rows() if "printed" not in found.quantity)


def test_a_layer_whose_rates_reach_two_is_found_out(monkeypatch):
    honest = rwkv7.dplr
    monkeypatch.setattr(rwkv7, "dplr", lambda log_decay, left, right: honest(log_decay, left, 2 * right))
    rows = [found for found in eigenvalues.rows() if "layer" in found.quantity or "printed" in found.quantity]
    assert len(rows) == 3 and not any(found.holds for found in rows)


def test_eigenvalues_of_rwkv_7_are_real_and_lie_between_the_bounds():
    matrices = eigenvalues.rwkv7(torch.Generator().manual_seed(5), base=None)
    found = torch.linalg.eigvals(matrices)
    assert found.imag.abs().max() < 1e-6 and found.real.max() < 1
    assert found.real.min() < -0.2
