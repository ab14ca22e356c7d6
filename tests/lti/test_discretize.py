"""Rules of discretization: against their definitions, against each other, and where the plain formulas break."""

import mpmath
import pytest
import torch

import lavagna as lv
from lavagna.lti.discretize import METHODS
from lavagna.lti.hippo import KINDS

mpmath.mp.dps = 40
REAL, COMPLEX = torch.float64, torch.complex128


def by_definition(A: torch.Tensor, B: torch.Tensor, step: float, method: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The printed formula of one dense system, in forty digits; the integral of ZOH as a series."""
    n = len(A)
    A, B = mpmath.matrix(A.tolist()) * step, mpmath.matrix(B.reshape(n, -1).tolist()) * step
    one = mpmath.eye(n)
    if method in ("zoh", "mamba"):
        phi, term = mpmath.zeros(n), one
        for k in range(1, 120):
            phi, term = phi + term / mpmath.factorial(k), term * A
        Ab, Bb = one + A * phi, phi * B if method == "zoh" else B
    elif method == "euler":
        Ab, Bb = one + A, B
    else:
        share = 0.5 if method == "bilinear" else 1
        inverse = (one - share * A) ** -1
        Ab, Bb = inverse * (one + (1 - share) * A), inverse * B
    return tuple(torch.tensor([[complex(x) for x in row] for row in m.tolist()], dtype=COMPLEX) for m in (Ab, Bb))


def singular(dtype: torch.dtype) -> torch.Tensor:
    """A stable matrix of rank 2 of 4."""
    left, right = torch.randn(2, 4, 2, dtype=dtype)
    return -left @ left.mH + 0.1 * left @ right.mH @ left @ left.mH


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [REAL, COMPLEX])
@pytest.mark.parametrize("step", [1e-6, 0.1, 1.0])
def test_a_singular_dense_system_is_discretized_as_defined(method, dtype, step, device):
    A, B = singular(dtype), torch.randn(4, 3, dtype=dtype)
    Ab, Bb = lv.lti.discretize(A.to(device), B.to(device), step, method)
    wanted = by_definition(A, B, step, method)
    assert Ab.dtype == Bb.dtype == dtype
    assert torch.allclose(Ab.cpu().to(COMPLEX), wanted[0], rtol=1e-12, atol=1e-13)
    assert torch.allclose(Bb.cpu().to(COMPLEX), wanted[1], rtol=1e-11, atol=1e-13 * step)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [REAL, COMPLEX])
@pytest.mark.parametrize("inputs", [(), (3,)])
def test_a_diagonal_system_is_the_dense_one_of_its_matrix(method, dtype, inputs, device):
    A = -torch.rand(5, dtype=dtype, device=device)
    A[2] = 0
    B = torch.randn(5, *inputs, dtype=dtype, device=device)
    short, long = (lv.lti.discretize(a, B, 0.3, method) for a in (A, A.diag()))
    assert torch.allclose(short.A.diag(), long.A, rtol=0, atol=1e-14)
    assert torch.allclose(short.B, long.B, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["zoh", "bilinear", "backward_euler"])
@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 1e2])
def test_hippo_with_64_coefficients_stays_stable_at_every_step(kind, method, step, device):
    A, B = lv.lti.hippo(kind, 64, device=device)
    Ab, Bb = lv.lti.discretize(A, B, step, method)
    assert torch.isfinite(Bb).all() and torch.linalg.eigvals(Ab).abs().max() <= 1 + 1e-9


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float32])
@pytest.mark.parametrize("method", METHODS)
def test_float32_keeps_its_digits_at_a_slow_mode_and_a_tiny_step(method, dtype, device):
    rate = torch.tensor([0.0, 1e-12, 1e-8, 1e-6, 1e-3, 1.0, 30.0])
    A, B = (-rate).to(dtype).to(device), torch.ones(7, dtype=dtype, device=device)
    for step in (1e-6, 1e-3, 1.0):
        found = lv.lti.discretize(A, B, step, method)
        exact = lv.lti.discretize(A.to(COMPLEX), B.to(COMPLEX), float(torch.tensor(step)), method)
        for one, other in zip(found, exact, strict=True):
            assert one.dtype == dtype
            assert torch.allclose(one.to(COMPLEX), other, rtol=1e-6, atol=1e-7 if one is found.A else 0)


@pytest.mark.parametrize("diagonal", [True, False])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 1e2])
def test_gradients_are_finite_down_to_modes_that_never_fade(diagonal, method, step, device):
    A = torch.tensor([0, 1e-30, -1e-12, -1e-6 + 3j, -0.5 + 1e4j, -40.0], dtype=COMPLEX, device=device)
    A = (A if diagonal else A.diag()).requires_grad_()
    B = torch.ones(6, dtype=COMPLEX, device=device, requires_grad=True)
    length = torch.tensor(step, dtype=REAL, device=device, requires_grad=True)
    Ab, Bb = lv.lti.discretize(A, B, length, method)
    sum(part.real.sum() + part.imag.sum() for part in (Ab, Bb)).backward()
    for part in (A, B, length):
        assert torch.isfinite(torch.view_as_real(part.grad) if part.is_complex() else part.grad).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(3,), (3, 3)])
def test_gradients_are_right(method, shape, device):
    A = torch.randn(*shape, dtype=REAL, device=device, requires_grad=True)
    B = torch.randn(3, 2, dtype=REAL, device=device, requires_grad=True)
    step = torch.tensor(0.3, dtype=REAL, device=device, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *parts: lv.lti.discretize(*parts, method), (A, B, step))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shape", [(3,), (3, 3)])
def test_steps_of_a_batch_are_discretized_each_by_itself(method, shape, device):
    A = torch.randn(2, *shape, dtype=REAL, device=device)
    B, step = torch.randn(2, 3, dtype=REAL, device=device), torch.rand(5, 2, dtype=REAL, device=device)
    Ab, Bb = lv.lti.discretize(A, B, step, method)
    assert Ab.shape == (5, 2, *shape) and Bb.shape == (5, 2, 3)
    for i in range(5):
        for j in range(2):
            alone = lv.lti.discretize(A[j], B[j], step[i, j].item(), method)
            assert torch.allclose(Ab[i, j], alone.A, rtol=0, atol=1e-13)
            assert torch.allclose(Bb[i, j], alone.B, rtol=0, atol=1e-13)


@pytest.mark.parametrize("step", [0.1, torch.tensor([0.1, 2.0], dtype=REAL)])
def test_a_single_mode_needs_no_axis(step, device):
    A, B = torch.tensor([-1.5, 2.0], dtype=REAL, device=device)
    step = step if isinstance(step, float) else step.to(device)
    for call in (
        lambda A, B: lv.lti.discretize(A, B, step, "zoh"),
        lambda A, B: lv.lti.exponential_trapezoid(A, B, step, 0.3),
    ):
        for alone, listed in zip(call(A, B), call(A[None], B[None]), strict=True):
            assert torch.equal(alone, listed[..., 0])


def test_structure_says_what_a_square_batch_is(device):
    A, B = -torch.rand(3, 3, dtype=REAL, device=device), torch.ones(3, 3, dtype=REAL, device=device)
    rows = lv.lti.discretize(A, B, 0.1, "zoh", structure="diagonal")
    assert torch.allclose(rows.A, (0.1 * A).exp())
    for dense in (lv.lti.discretize(A, B, 0.1, "zoh", structure="dense"), lv.lti.discretize(A, B, 0.1, "zoh")):
        assert torch.allclose(dense.A, torch.linalg.matrix_exp(0.1 * A))
    with pytest.raises(ValueError, match=r"\(2, 3, 3\) and B \(2, 3, 3\).*structure='dense' or structure='diagonal'"):
        lv.lti.discretize(A.expand(2, 3, 3), B.expand(2, 3, 3), 0.1, "zoh")


@pytest.mark.parametrize(
    ("A", "B", "options", "said"),
    [
        ((3, 3), (4,), {}, r"dense A \(3, 3\) needs a B \(.. 3\).*\(4,\)"),
        ((3,), (4,), {}, r"diagonal A \(3,\).*\(4,\)"),
        ((3,), (2, 3, 1), {}, r"\(2, 3, 1\)"),
        ((2, 3), (4, 3), {}, r"diagonal A \(2, 3\).*\(4, 3\)"),
        ((2, 3), (2, 3), {"step": torch.ones(5)}, r"step as \(5,\)"),
        ((2, 3), (2, 3), {"structure": "dense"}, r"'dense'.*\(2, 3\)"),
        ((3,), (3,), {"structure": "full"}, "'full'"),
        ((), (3,), {}, r"\(\)"),
        ((3,), (3,), {"method": "tustin"}, "zoh, bilinear, euler, backward_euler, mamba.*'tustin'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(A, B, options, said, device):
    options = {"step": 0.1, "method": "zoh"} | options
    step, method = options.pop("step"), options.pop("method")
    with pytest.raises(ValueError, match=said) as caught:
        lv.lti.discretize(torch.zeros(A, device=device), torch.zeros(B, device=device), step, method, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(3,), (3, 3)])
def test_the_trapezoid_weighs_the_last_input_and_this_one(shape, device):
    A, B = torch.randn(*shape, dtype=REAL, device=device), torch.randn(3, dtype=REAL, device=device)
    step, lam = torch.rand(2, 4, dtype=REAL, device=device)
    alpha, beta, gamma = lv.lti.exponential_trapezoid(A, B, step, lam)
    for i in range(4):
        Ab, Bb = lv.lti.discretize(A, B, step[i].item(), "mamba")
        assert torch.allclose(alpha[i], Ab) and torch.allclose(gamma[i], lam[i] * Bb)
        assert torch.allclose(beta[i], (1 - lam[i]) * (Ab @ Bb if len(shape) == 2 else Ab * Bb))


def test_at_lambda_one_the_trapezoid_is_mambas_rule_and_at_a_half_it_is_of_second_order(device):
    A, B = -torch.rand(3, dtype=REAL, device=device), torch.ones(3, dtype=REAL, device=device)
    alpha, beta, gamma = lv.lti.exponential_trapezoid(A, B, 0.1, 1.0)
    assert torch.equal(alpha, lv.lti.discretize(A, B, 0.1, "mamba").A) and torch.equal(gamma, 0.1 * B)
    assert not beta.any()

    def error(step: float) -> float:
        # Over one unit of the ramp u(t) = t the state is exact in closed form.
        alpha, beta, gamma = lv.lti.exponential_trapezoid(A, B, step, 0.5)
        x, times = torch.zeros_like(A), [step * i for i in range(round(1 / step) + 1)]
        for before, now in zip(times, times[1:], strict=False):
            x = alpha * x + beta * before + gamma * now
        return ((A.exp() - 1 - A) / A**2 - x).abs().max().item()

    assert 3.8 < error(0.02) / error(0.01) < 4.2


def test_many_large_matrices_are_solved_as_each_alone_by_several_threads(device):
    A = torch.randn(160, 160, device=device, dtype=torch.float64) / 160
    B, steps = torch.randn(160, device=device, dtype=torch.float64), torch.tensor([0.1, 1, 2], device=device).double()
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        many = lv.lti.discretize(A, B, steps, "bilinear")
        alone = [lv.lti.discretize(A, B, step.item(), "bilinear") for step in steps]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.allclose(many.A[i], one.A, rtol=1e-12, atol=1e-14) for i, one in enumerate(alone))
    assert all(torch.allclose(many.B[i], one.B, rtol=1e-12, atol=1e-14) for i, one in enumerate(alone))


@pytest.mark.parametrize("method", ["zoh", "mamba"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-14), (torch.float32, 1e-6)])
def test_small_dense_systems_are_as_exact_as_diagonal_ones(method, dtype, tolerance, device):
    for exponent in torch.linspace(-4, 0.5, 40).tolist():
        A, B = -torch.rand(3, device=device, dtype=dtype), torch.randn(3, device=device, dtype=dtype)
        dense = lv.lti.discretize(A.diag(), B, 10**exponent, method)
        diagonal = lv.lti.discretize(A, B, 10**exponent, method)
        assert (dense.A - diagonal.A.diag()).abs().max() < tolerance, exponent
        assert (dense.B - diagonal.B).abs().max() < tolerance * diagonal.B.abs().max(), exponent


@pytest.mark.parametrize("name", ["A", "B"])
def test_whole_numbers_are_refused_since_a_step_would_be_none_among_them(device, name):
    A, B = (torch.eye(2, dtype=torch.int64 if name == one else torch.float64, device=device) for one in "AB")
    with pytest.raises(ValueError, match=f"discretize: {name} must be real or complex floating"):
        lv.lti.discretize(A, B, torch.tensor(0.3), "zoh", structure="dense")
