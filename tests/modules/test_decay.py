"""Learned rates and step sizes."""

import torch
from torch import nn

from lavagna.modules.decay import rate, reset_rates, reset_steps, step_size


def test_new_step_sizes_are_log_uniform_within_their_bounds():
    bias = nn.Parameter(torch.empty(5000, dtype=torch.float64))
    reset_steps(bias, low=1e-3, high=0.1)
    sizes = step_size(torch.zeros(5000, dtype=torch.float64), bias)
    assert (sizes >= 0.999999e-3).all() and (sizes <= 0.1000001).all()
    logs = sizes.log10()
    assert abs(logs.mean() + 2) < 0.05 and abs(logs.std() - 2 / 12**0.5) < 0.02


def test_new_rates_are_uniform_within_their_bounds():
    log = nn.Parameter(torch.empty(5000, dtype=torch.float64))
    reset_rates(log, low=1, high=16)
    rates = -rate(log).flatten()
    assert (rates >= 0.999999).all() and (rates <= 16.00001).all() and abs(rates.mean() - 8.5) < 0.3


def test_both_are_float32_where_what_came_is_bfloat16():
    low = torch.zeros(3, dtype=torch.bfloat16)
    assert rate(low).dtype == step_size(low, low).dtype == torch.float32


def test_a_rate_beyond_every_float_has_a_finite_gradient():
    log = torch.tensor([100.0, 1000.0, 1.0], requires_grad=True)
    bias = torch.zeros(3, requires_grad=True)
    (rate(log).flatten() * step_size(torch.zeros(3), bias)).exp().sum().backward()
    assert log.grad is not None and log.grad.isfinite().all() and log.grad[2] != 0
    assert bias.grad is not None and bias.grad.isfinite().all()
