"""Where learned systems start."""

import math

import pytest
import torch
from torch import nn

import lavagna as lv
from lavagna.lti import left_half, rates, reset_log_steps


def test_the_first_half_of_the_normal_part_is_the_spectrum_of_legs():
    assert torch.equal(lv.lti.spectrum("legs", 10), lv.lti.nplr("legs", 10).Lambda[:5])


def test_the_inverse_law_nears_the_spectrum_of_legs_from_the_fastest_mode_down():
    off = {}
    for n in (64, 128, 256):
        found, law = lv.lti.spectrum("legs", n).imag.flip(0), lv.lti.spectrum("inv", n).imag
        off[n] = ((found - law).abs() / law)[:4]
    # A conjecture for large n, where each mode is off by something of the order of its number over n.
    assert off[256][0] < 0.005 and (off[256] < 0.03).all()
    assert (off[128] < 0.6 * off[64]).all() and (off[256] < 0.6 * off[128]).all()


def test_linear_frequencies_are_those_of_fourier():
    assert torch.allclose(lv.lti.spectrum("lin", 12).imag, lv.lti.nplr("fout", 12).Lambda[:6].imag)
    assert (lv.lti.spectrum("lin", 12).real == -0.5).all()


def test_real_modes_are_the_eigenvalues_of_legs():
    assert torch.equal(lv.lti.spectrum("real", 7), lv.lti.hippo("legs", 7)[0].diagonal())


@pytest.mark.parametrize("kind", ["legs", "inv", "lin"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rates_and_frequencies_make_the_spectrum_again(kind, dtype, device):
    Lambda = lv.lti.spectrum(kind, 16, dtype=dtype, device=device)
    back = left_half(*rates(Lambda))
    assert back.dtype == Lambda.dtype and torch.allclose(back, Lambda, rtol=1e-6 if dtype == torch.float32 else 1e-15)


def test_a_mode_that_never_fades_is_given_the_slowest_rate(device):
    Lambda = lv.lti.nplr("fout", 8, device=device).Lambda
    assert torch.allclose(left_half(*rates(Lambda, slowest=1e-3)).real, torch.full((8,), -1e-3).to(Lambda.real))


@pytest.mark.parametrize(
    ("kind", "n", "said"),
    [("quad", 4, "legs, inv, lin, real.*'quad'"), ("lin", 5, "even.*5"), ("real", 0, "at least 1.*0")],
)
def test_a_spectrum_that_cannot_be_is_refused(kind, n, said):
    with pytest.raises(ValueError, match=said):
        lv.lti.spectrum(kind, n)


def test_new_step_sizes_are_log_uniform_within_their_bounds(device):
    log_step = nn.Parameter(torch.empty(5000, device=device))
    reset_log_steps(log_step, low=1e-3, high=0.1)
    logs = log_step.detach() / math.log(10)
    assert (logs >= -3.0001).all() and (logs <= -0.9999).all()
    assert abs(logs.mean() + 2) < 0.05 and abs(logs.std() - 2 / 12**0.5) < 0.02


def test_step_sizes_on_the_meta_device_are_left_alone():
    log_step = nn.Parameter(torch.empty(3, device="meta"))
    state = torch.get_rng_state()
    reset_log_steps(log_step)
    assert torch.equal(torch.get_rng_state(), state) and log_step.is_meta
