"""HiPPO's matrices, held to what they promise: the coefficients of a moving past."""

import math

import numpy as np
import pytest
import torch
from numpy.polynomial import Laguerre, Legendre, Polynomial, legendre

import lavagna as lv
from lavagna.lti.hippo import KINDS

SIZE = 6


def legendre_coefficients(p: Polynomial) -> np.ndarray:
    """Coefficients of a polynomial of v in [0, 1] in the normalized Legendre polynomials of 2v - 1."""
    nodes, weights = legendre.leggauss(SIZE + 2)
    v = (nodes + 1) / 2
    return np.array([0.5 * (weights * p(v) * basis(n, v)).sum() for n in range(SIZE)])


def basis(n: int, v: np.ndarray) -> np.ndarray:
    return math.sqrt(2 * n + 1) * Legendre.basis(n)(2 * v - 1)


def system(kind: str) -> tuple[np.ndarray, np.ndarray]:
    A, B = lv.lti.hippo(kind, SIZE)
    return A.numpy(), B.numpy()


@pytest.mark.parametrize("degree", range(SIZE))
def test_legs_follows_the_coefficients_of_a_power_of_time(degree):
    # For f(t) = t^m the coefficients are t^m a, so that t c' = m t^m a has to be t^m (A a + B).
    A, B = system("legs")
    a = legendre_coefficients(Polynomial([0] * degree + [1]))
    assert np.allclose(A @ a + B, degree * a, rtol=0, atol=1e-12)


@pytest.mark.parametrize("degree", range(SIZE))
def test_legt_follows_the_coefficients_of_a_polynomial_that_slides_through_a_window_of_two(degree):
    # v = 1 - s / 2 for the age s: as time goes on f changes by half its derivative in v.
    A, B = system("legt")
    f = Polynomial([0] * degree + [1])
    c, slope = legendre_coefficients(f), legendre_coefficients(0.5 * f.deriv())
    assert np.allclose(A @ c + B * f(1), slope, rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", range(SIZE))
def test_lagt_follows_the_coefficients_of_a_laguerre_function_that_ages(k):
    # f(s) = e^(-s/2) L_k(s) changes in time by -f'(s) = e^(-s/2) (L_k / 2 - L_k').
    A, B = system("lagt")
    f = Laguerre.basis(k)
    slope = (0.5 * f - f.deriv()).coef
    assert np.allclose(A[:, k] + B * f(0), np.pad(slope, (0, SIZE - len(slope))), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", range(SIZE // 2))
def test_fout_follows_the_coefficients_of_a_wave_that_fits_its_window_of_two(mode):
    # In time cos(pi m s) goes to pi m sin(pi m s), and the sine to minus pi m times the cosine, for the age s.
    A, B = system("fout")
    now = math.sqrt(2) if mode else 1.0
    cosine, sine = A[:, 2 * mode] + B * now, A[:, 2 * mode + 1]
    unit = np.eye(SIZE)
    assert np.allclose(cosine, math.pi * mode * unit[2 * mode + 1], rtol=0, atol=1e-12)
    assert np.allclose(sine, -math.pi * mode * unit[2 * mode], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_dtype_and_device_are_those_asked_for_and_values_come_from_float64(kind, device):
    exact = lv.lti.hippo(kind, 64)
    found = lv.lti.hippo(kind, 64, dtype=torch.float32, device=device)
    for one, other in zip(exact, found, strict=True):
        assert one.dtype == torch.float64 and other.dtype == torch.float32 and other.device.type == device.type
        assert torch.equal(one.float(), other.cpu())


@pytest.mark.parametrize(
    ("kind", "n", "said"),
    [
        ("legz", 4, "legs, legt, lagt, fout.*'legz'"),
        ("legs", 0, "at least 1.*0"),
        ("fout", 5, "in pairs.*5. Use 6"),
    ],
)
@pytest.mark.parametrize("call", ["hippo", "nplr"])
def test_a_basis_that_cannot_be_is_refused_in_one_line(call, kind, n, said):
    with pytest.raises(ValueError, match=f"^{call}: .*{said}"):
        getattr(lv.lti, call)(kind, n)


@pytest.mark.parametrize(("n", "dtype"), [(0, torch.float64), (2, torch.int64)])
def test_a_size_or_dtype_that_is_none_is_refused(n, dtype):
    with pytest.raises(ValueError, match="^hippo: (n must be an int|dtype must be a real)"):
        lv.lti.hippo("legs", n, dtype=dtype)
