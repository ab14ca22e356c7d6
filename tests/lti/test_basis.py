"""The functions of each basis are orthonormal, and their own systems make them."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial import laguerre, legendre

import lavagna as lv
from lavagna.lti.basis import basis, span
from lavagna.lti.hippo import KINDS

SIZE = 20


@pytest.mark.parametrize("kind", ["legs", "legt"])
def test_legendre_functions_are_orthonormal_over_the_window(kind, device):
    nodes, weights = (torch.from_numpy(x).to(device) for x in legendre.leggauss(SIZE))
    rows = basis(kind, SIZE, (nodes + 1) / 2)
    products = rows.mT @ (0.5 * weights[:, None] * rows)
    assert torch.allclose(products, torch.eye(SIZE, device=device).double(), rtol=0, atol=1e-12)


def test_waves_are_orthonormal_over_the_window_and_the_sine_of_zero_is_missing(device):
    times = torch.arange(2 * SIZE, dtype=torch.float64, device=device) / (2 * SIZE)
    rows = basis("fout", SIZE, times)
    wanted = torch.eye(SIZE, device=device).double()
    wanted[1, 1] = 0
    assert torch.allclose(rows.mT @ rows / (2 * SIZE), wanted, rtol=0, atol=1e-12)


def test_laguerre_functions_are_orthonormal_over_all_ages(device):
    nodes, weights = laguerre.laggauss(SIZE)
    ages, weights = (torch.from_numpy(x).to(device) for x in (nodes, weights * np.exp(nodes)))
    rows = basis("lagt", SIZE, 1 - ages / span("lagt", SIZE))
    products = rows.mT @ (weights[:, None] * rows)
    assert torch.allclose(products, torch.eye(SIZE, device=device).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("n", [64, 256, 1024])
def test_the_oldest_laguerre_functions_neither_overflow_nor_vanish(n):
    oldest = basis("lagt", n, torch.tensor([0.0, 0.01], dtype=torch.float64))
    assert torch.isfinite(oldest).all() and oldest.norm() > 0.1 and oldest.abs().max() < 1


def test_the_response_of_lagt_to_an_impulse_is_its_basis(device):
    A, B = lv.lti.hippo("lagt", SIZE, device=device)
    for age in (0.0, 0.7, 5.0):
        response = torch.linalg.matrix_exp(age * A) @ B
        time = torch.tensor([1 - age / span("lagt", SIZE)], dtype=torch.float64, device=device)
        assert torch.allclose(response, basis("lagt", SIZE, time)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_now_is_what_the_system_adds(kind, device):
    # B is the basis at age zero, over the length of the window where that is what the mean is taken over.
    _, B = lv.lti.hippo(kind, SIZE, device=device)
    now = basis(kind, SIZE, torch.ones(1, dtype=torch.float64, device=device))[0]
    share = 0.5 if kind == "legt" else 1.0
    assert torch.allclose(share * now, B, rtol=0, atol=1e-12)


def test_a_wave_of_a_whole_number_of_turns_is_one_function(device):
    times = torch.linspace(0, 1, 9, dtype=torch.float64, device=device)
    rows = basis("fout", 8, times)
    assert torch.allclose(rows[:, 6], math.sqrt(2) * (2 * math.pi * 3 * (1 - times)).cos(), rtol=0, atol=1e-12)
