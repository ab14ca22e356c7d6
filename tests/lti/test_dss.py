"""Diagonal state spaces against the softmax that defines them, S4D, and the recurrence they are."""

import pytest
import torch

import lavagna as lv
from lavagna.lti.dss import METHODS, dss_kernel, dss_vectors, dss_weights
from lavagna.lti.vandermonde import diagonal_kernel

EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
SIGNS = pytest.mark.parametrize("sign", [-1, 1])


def system(device, *, sign=-1, dtype=torch.float64):
    """Modes, weights and steps of 2 channels with 5 modes each; `sign` is that of the real parts."""
    real = sign * (0.05 + torch.rand(2, 5, dtype=dtype, device=device))
    Lambda = torch.complex(real, 20 * torch.randn_like(real))
    C = torch.randn(2, 5, dtype=dtype.to_complex(), device=device)
    return Lambda, C, torch.tensor([0.02, 0.3], dtype=dtype, device=device)


def defined(Lambda, C, step, length):
    """`sum_n (C_n / Lambda_n) softmax_l(step Lambda_n l)`, the largest exponent subtracted."""
    exponents = step[:, None, None] * Lambda[..., None] * torch.arange(length, device=Lambda.device)
    top = exponents.real.amax(-1, keepdim=True)
    powers = (exponents - top).exp()
    return ((C / Lambda)[..., None] * powers / powers.sum(-1, keepdim=True)).sum(-2)


def hold(Lambda, C, step, length):
    """S4D's filter under the zero-order hold, power by power."""
    z = step[:, None] * Lambda
    powers = (z[..., None] * torch.arange(length, device=z.device)).exp()
    return (C * (z.exp() - 1) / Lambda)[..., None].mul(powers).sum(-2)


def relative(ours, right):
    assert ours.shape == right.shape
    return ((ours - right).abs().max() / right.abs().max()).item()


@SIGNS
@pytest.mark.parametrize("length", [1, 2, 7, 64, 1000])
def test_the_filter_is_a_softmax_over_positions(sign, length, device):
    Lambda, C, step = system(device, sign=sign)
    right = defined(Lambda, C, step, length)
    assert relative(dss_kernel(Lambda, C, step, length), right) < 1e-12
    assert relative(dss_kernel(Lambda, C, step, length, conjugates=True), 2 * right.real) < 1e-12


def test_the_softmax_is_s4d_with_its_weights_divided_by_what_is_left_at_the_end(device):
    Lambda, C, step = system(device)
    turned = C * ((40 * step[:, None] * Lambda).exp() - 1)
    assert relative(dss_kernel(Lambda, turned, step, 40), hold(Lambda, C, step, 40)) < 1e-12


def test_exp_is_s4d_under_the_zero_order_hold(device):
    Lambda, C, step = system(device)
    assert relative(dss_kernel(Lambda, C, step, 40, method="exp"), hold(Lambda, C, step, 40)) < 1e-12


@EVERY_METHOD
@SIGNS
def test_the_weights_are_those_of_a_plain_sum_of_powers(method, sign, device):
    Lambda, C, step = system(device, sign=sign)
    weights = dss_weights(Lambda, C, step, 30, method=method)
    plain = diagonal_kernel(weights, step[:, None] * Lambda, 30)
    assert relative(plain, dss_kernel(Lambda, C, step, 30, method=method)) < 1e-12


@EVERY_METHOD
@SIGNS
def test_a_filter_at_a_lag_does_not_depend_on_how_many_are_asked_for(method, sign, device):
    Lambda, C, step = system(device, sign=sign)
    whole = dss_kernel(Lambda, C, step, 30, method=method)
    assert relative(dss_kernel(Lambda, C, step, 30, method=method, steps=11), whole[:, :11]) < 1e-12
    past = dss_kernel(Lambda, C, step, 30, method=method, steps=45)
    assert relative(past[:, :30], whole) < 1e-12
    weights = dss_weights(Lambda, C, step, 30, method=method)
    assert relative(past, diagonal_kernel(weights, step[:, None] * Lambda, 45)) < 1e-12


@EVERY_METHOD
@SIGNS
def test_the_vectors_write_and_read_a_recurrence_with_the_same_filter(method, sign, device):
    Lambda, C, step = system(device, sign=sign)
    write, read = dss_vectors(Lambda, C, step, 30, method=method)
    u = torch.randn(1, 45, 2, 1, dtype=torch.float64, device=device)
    q, k = (x.expand(1, 45, 2, 5) for x in (read, write))
    y = lv.recur(lv.diagonal((step[:, None] * Lambda)[None, None]), q, k, u.to(k.dtype)).output
    filters = dss_kernel(Lambda, C, step, 30, method=method, steps=45)
    right = [(filters[:, : t + 1].flip(-1) * u[0, : t + 1, :, 0].T).sum(-1) for t in range(45)]
    assert relative(y[0, :, :, 0], torch.stack(right)) < 1e-12


def test_modes_that_grow_stay_exact_in_single_precision(device):
    Lambda, C, step = system(device, sign=1)
    Lambda = torch.complex(Lambda.real * 0 + 1, Lambda.imag)
    length = 500
    right = defined(Lambda, C, step, length)
    single = Lambda.to(torch.complex64), C.to(torch.complex64), step.float()
    for filters, right_one in zip(dss_kernel(*single, length), right, strict=True):
        assert (filters - right_one).abs().max() < 2e-5 * right_one.abs().max()
    write, read = dss_vectors(*single, length)
    assert write.dtype == read.dtype == torch.complex64 and write.abs().min() > 0 and read.abs().min() > 0


def test_modes_that_grow_beyond_every_range_have_a_filter_nonetheless(device):
    Lambda, C, _ = system(device, sign=1)
    step = torch.tensor([100.0, 1e-6], dtype=torch.float64, device=device)
    assert relative(dss_kernel(Lambda, C, step, 3000), defined(Lambda, C, step, 3000)) < 1e-11


@EVERY_METHOD
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("Lambda", [0, 1e-30, -1e-9, 1e-9j, -1e-5 + 1e-5j, 2j * torch.pi / 8, 2j * torch.pi, -1e9])
def test_filters_and_gradients_are_finite_where_a_denominator_is_zero(method, dtype, Lambda, device):
    given = [torch.full((1, 2), x, dtype=dtype.to_complex(), device=device).requires_grad_() for x in (Lambda, 1.0)]
    step = torch.ones(1, dtype=dtype, device=device).requires_grad_()
    filters = dss_kernel(*given, step, 8, method=method)
    filters.abs().square().sum().backward()
    assert torch.isfinite(torch.view_as_real(filters)).all()
    for x in given:
        assert torch.isfinite(torch.view_as_real(x.grad)).all()
    assert torch.isfinite(step.grad).all()


def test_a_whole_turn_a_step_is_no_turn(device):
    Lambda = torch.tensor([[-0.1 + 0j]], dtype=torch.complex128, device=device)
    C, step = torch.ones_like(Lambda), torch.ones(1, dtype=torch.float64, device=device)
    still = dss_kernel(Lambda, Lambda * C, step, 8)
    turning = Lambda + 2j * torch.pi
    assert relative(dss_kernel(turning, turning * C, step, 8), still) < 1e-12


@EVERY_METHOD
@SIGNS
def test_gradients_pass_gradcheck(method, sign, device):
    given = [*system(device, sign=sign)]
    for x in given:
        x.requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: dss_kernel(*x, 6, method=method), given, fast_mode=True)

    def vectors(*x):
        return tuple(vector for vector in dss_vectors(*x, 6, method=method) if vector.requires_grad)

    assert torch.autograd.gradcheck(vectors, given, fast_mode=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"method": "max"}, "softmax, exp, but came as 'max'"), ({"length": 0}, "length must be an int >= 1.*0")],
)
def test_what_cannot_be_gets_one_line(options, said, device):
    Lambda, C, step = system(device)
    with pytest.raises(ValueError, match=said):
        dss_kernel(Lambda, C, step, **({"length": 4} | options))
