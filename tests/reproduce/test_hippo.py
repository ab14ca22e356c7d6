"""The claim about HiPPO can fail."""

import math

import torch

from lavagna.reproduce import hippo
from lavagna.reproduce.hippo import HARMONICS, error, middles, moved, signals


def test_signals_are_of_seven_harmonics_with_normal_amplitudes_and_uniform_phases():
    f = signals(2000, middles(64))
    waves = torch.fft.rfft(f) / 32
    assert waves[:, 0].abs().max() < 1e-12 and waves[:, HARMONICS + 1 :].abs().max() < 1e-12
    size = waves[:, 1 : HARMONICS + 1].abs()
    assert abs(size.square().mean() - 1) < 0.05 and abs(size.mean() - math.sqrt(2 / math.pi)) < 0.02
    turned = waves[:, 1 : HARMONICS + 1] / size
    assert turned.mean(0).abs().max() < 0.07
    assert torch.equal(signals(2, middles(9), seed=5), signals(2, middles(9), seed=5))


def test_the_error_of_a_signal_is_what_is_missing_of_it():
    constant = torch.full((1, 50), 2.0, dtype=torch.float64)
    assert error("legs", constant).item() < 1e-12
    assert 0.5 < error("legs", torch.randn(1, 1000, dtype=torch.float64)).item() < 1


def test_a_rule_of_first_order_is_found_out():
    f = signals(20, middles(1000))
    assert error("legs", f, method="backward_euler").median() > hippo.AT_MOST["legs"]


def test_a_longer_past_moves_a_memory_that_has_a_window(monkeypatch):
    f = signals(20, middles(1000))
    assert moved(f).median() < 0.01
    honest = hippo.online_hippo
    monkeypatch.setattr(hippo, "online_hippo", lambda f, n: honest(f, n, kind="legt", step=2e-3))
    assert moved(f).median() > 0.5
