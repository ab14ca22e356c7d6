"""The functions of an exponential that would lose their digits, against hundreds of digits."""

import math

import mpmath
import pytest
import torch

from lavagna.lti import expm, expm1, log_bilinear, phi1

SIZES = [0.0, 1e-300, 1e-20, 1e-9, 1e-4, 0.1, 0.499, 0.5, 0.501, 1.0, 5.0]
ANGLES = [0.0, 0.5, 1.0, 1.5]
# From the real axis to the imaginary one in the left half-plane, zero among them.
POINTS = [-size * complex(math.cos(angle), -math.sin(angle)) for size in SIZES for angle in (*ANGLES, math.pi / 2)]


def exact(name: str, z: complex) -> complex:
    with mpmath.workdps(700):
        z = mpmath.mpc(z)
        if name == "log_bilinear":
            return complex(mpmath.log((1 + z / 2) / (1 - z / 2)))
        if name == "expm1":
            return complex(mpmath.exp(z) - 1)
        return complex((mpmath.exp(z) - 1) / z) if z else 1.0


FUNCTIONS = {"expm1": expm1, "phi1": phi1, "log_bilinear": log_bilinear}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_no_digit_is_lost_near_zero_or_anywhere_on_the_left(name, dtype, device):
    z = torch.tensor(POINTS, dtype=dtype, device=device)
    found = FUNCTIONS[name](z)
    wanted = torch.tensor([exact(name, point) for point in z.cpu().tolist()], dtype=torch.complex128)
    assert found.dtype == dtype
    error = (found.cpu() - wanted).abs()
    # Below the normal numbers there is nothing relative left.
    info = torch.finfo(dtype)
    assert (error <= 8 * info.eps * wanted.abs() + 8 * info.tiny).all()


@pytest.mark.parametrize("name", ["expm1", "phi1"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_real_numbers_stay_real_and_keep_their_digits(name, dtype, device):
    z = torch.tensor([sign * size for size in SIZES for sign in (-1, 1)], dtype=dtype, device=device)
    found = FUNCTIONS[name](z)
    wanted = torch.tensor([exact(name, point).real for point in z.cpu().tolist()], dtype=torch.float64)
    assert found.dtype == dtype
    assert torch.allclose(found.cpu().double(), wanted, rtol=8 * torch.finfo(dtype).eps, atol=0)


def test_a_real_step_that_overshoots_is_a_negative_decay(device):
    z = torch.tensor([-1.0, -6.0], dtype=torch.float64, device=device)
    decay = log_bilinear(z).exp()
    assert torch.allclose(decay.real, (1 + z / 2) / (1 - z / 2), rtol=1e-15, atol=0)
    assert decay.imag.abs().max() < 1e-15 and log_bilinear(z)[1].imag == math.pi


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_gradients_are_finite_at_zero_at_the_pole_of_the_logarithm_and_far_out(name, dtype, device):
    points = [*POINTS, -2, -2 + 1e-20j, -2 + 1e-7, -1e5, -1e5 + 1e6j, 1e6j, complex(-1e-30, 1e-30)]
    z = torch.tensor(points, dtype=dtype, device=device, requires_grad=True)
    out = FUNCTIONS[name](z)
    (out.real.sum() + out.imag.sum()).backward()
    assert torch.isfinite(torch.view_as_real(out)).all() and torch.isfinite(torch.view_as_real(z.grad)).all()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_right_in_both_branches(name, device):
    points = [0j, 1e-9, -0.3 + 0.2j, -0.7 + 0.4j, -1.9 + 0.1j, -3.0 + 2j]
    z = torch.tensor(points, dtype=torch.complex128, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(FUNCTIONS[name], z)


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 0.03, 0.1, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_the_exponential_of_a_matrix_keeps_its_digits_at_every_size(dtype, scale, device):
    z = scale * torch.randn(6, 2, 2, dtype=dtype, device=device)
    with mpmath.workdps(50):
        wanted = [[[complex(x) for x in row] for row in mpmath.expm(mpmath.matrix(one)).tolist()] for one in z.tolist()]
    error = (expm(z).to(torch.complex128).cpu() - torch.tensor(wanted, dtype=torch.complex128)).abs().amax((1, 2))
    assert (error <= 64 * torch.finfo(dtype).eps * torch.tensor(wanted).abs().amax((1, 2))).all()


def test_the_gradient_of_a_matrix_exponential_is_that_of_its_differences(device):
    z = 0.1 * torch.randn(2, 3, 3, dtype=torch.float64, device=device)
    assert torch.autograd.gradcheck(expm, z.requires_grad_())
