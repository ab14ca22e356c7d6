"""The two faces of a linear system: naive powers, filter and recurrence agree; states, dtypes, gradients, errors."""

import pytest
import torch

from lavagna.forms import FORMS
from lavagna.lti import hippo
from lavagna.lti.discretize import METHODS
from lavagna.lti.system import System

KINDS = ("dense", "diagonal", "diagonal complex", "many", "diagonal many")
EVERY_KIND = pytest.mark.parametrize("kind", KINDS)
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)


def parts(kind, device, dtype=torch.float64):
    """A, B, C, D of a system of 4 modes that fade; "many" have 3 inputs and 2 outputs."""
    if kind in ("dense", "many"):
        A = hippo("legs", 4)[0].to(device=device, dtype=dtype)
    else:
        A = -torch.tensor([0.05, 0.7, 1.5, 6.0], device=device, dtype=dtype)
        A = torch.complex(A, 3 * torch.randn_like(A)) if "complex" in kind else A
    shapes = ((4, 3), (2, 4), (2, 3)) if "many" in kind else ((4,), (4,), ())
    return A, *(torch.randn(shape, dtype=A.dtype, device=device) for shape in shapes)


def system(kind, device, *, step=0.3, method="zoh", dtype=torch.float64):
    return System(*parts(kind, device, dtype), step, method)


def inputs(some, device, *, t=20, b=2, dtype=torch.float64):
    return torch.randn(*((b, t) if some.B.ndim == 1 else (b, t, some.inputs)), dtype=dtype, device=device)


def naive(some, u, state):
    """`x_t = Ab x_{t-1} + Bb u_t`, `y_t = C x_t + D u_t`, with matrices whatever the system has."""
    Ab, Bb = some.discrete()
    Ab = Ab if some.dense else Ab.diag()
    u = (u.unsqueeze(-1) if some.B.ndim == 1 else u).to(Ab.dtype)
    Bb, C, D = Bb.reshape(4, -1), some.C.reshape(-1, 4), some.D.reshape(some.outputs, some.inputs)
    answers = []
    for t in range(u.shape[1]):
        state = state @ Ab.T + u[:, t] @ Bb.T
        answers.append(state @ C.T + u[:, t] @ D.T)
    y = torch.stack(answers, 1)
    return y.squeeze(-1) if some.C.ndim == 1 else y, state


def difference(x, y):
    assert x.shape == y.shape and x.dtype == y.dtype
    return ((x - y).abs().max() / y.abs().max().clamp_min(1)).item()


@EVERY_KIND
@EVERY_METHOD
def test_a_filter_is_made_of_naive_powers(kind, method, device):
    some = system(kind, device, method=method)
    Ab, Bb = some.discrete()
    Ab = Ab if some.dense else Ab.diag()
    right = torch.stack([some.C @ torch.linalg.matrix_power(Ab, power) @ Bb for power in range(20)], -1)
    assert difference(some.kernel(20), right) < 1e-12


@EVERY_KIND
@EVERY_METHOD
@pytest.mark.parametrize("t", [1, 2, 33])
def test_the_filter_the_recurrence_and_the_steps_are_one(kind, method, t, device):
    some = system(kind, device, step=0.2, method=method)
    u = inputs(some, device, t=t)
    before = torch.randn(2, 4, dtype=some.A.dtype, device=device)
    y, state = naive(some, u, before)
    assert difference(some.convolve(u, before), y) < 1e-12
    found = some.recur(u, before)
    assert difference(found.y, y) < 1e-12 and difference(found.state, state) < 1e-12
    steps, after = [], before
    for t in range(u.shape[1]):
        one, after = some.step(u[:, t], after)
        steps.append(one)
    assert difference(torch.stack(steps, 1), y) < 1e-12 and difference(after, state) < 1e-12


@EVERY_KIND
@pytest.mark.parametrize("t", [1, 70, 1000])
def test_the_faces_agree_in_single_precision(kind, t, device):
    some = system(kind, device, step=0.01, dtype=torch.float32)
    u = inputs(some, device, t=t, dtype=torch.float32)
    before = torch.randn(2, 4, dtype=some.A.dtype, device=device)
    found = some.recur(u, before)
    assert found.y.dtype == found.state.dtype == some.A.dtype
    assert difference(some.convolve(u, before), found.y) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_a_diagonal_system_runs_in_every_form(form, device):
    some = system("diagonal complex", device)
    u = inputs(some, device, t=30)
    right, found = some.recur(u, form="recurrent"), some.recur(u, form=form)
    assert difference(found.y, right.y) < 1e-12 and difference(found.state, right.state) < 1e-12


@EVERY_KIND
def test_no_state_is_a_state_of_zeros_and_any_cut_equals_the_whole(kind, device):
    some = system(kind, device)
    u = inputs(some, device)
    zeros = torch.zeros(2, 4, dtype=some.A.dtype, device=device)
    whole = some.recur(u)
    assert torch.equal(whole.y, some.recur(u, zeros).y)
    assert difference(some.convolve(u), some.convolve(u, zeros)) < 1e-12
    for cut in (0, 1, 7, 20):
        first = some.recur(u[:, :cut])
        second = some.recur(u[:, cut:], first.state)
        assert difference(torch.cat([first.y, second.y], 1), whole.y) < 1e-12
        assert difference(second.state, whole.state) < 1e-12
        pieces = [some.convolve(u[:, :cut]), some.convolve(u[:, cut:], first.state)]
        assert difference(torch.cat(pieces, 1), whole.y) < 1e-12


@EVERY_KIND
def test_states_are_neither_changed_nor_aliased(kind, device):
    some = system(kind, device)
    before = torch.randn(2, 4, dtype=some.A.dtype, device=device)
    kept = before.clone()
    for t in (0, 3):
        after = some.recur(inputs(some, device, t=t), before).state
        after.zero_()
        assert torch.equal(before, kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype, device):
    some = System(*(x.to(dtype) for x in parts("diagonal", device)), 0.5)
    u = inputs(some, device, t=3000, dtype=dtype)
    assert some.A.dtype == torch.float32
    y = some.convolve(u)
    assert y.dtype == some.recur(u).y.dtype == torch.float32
    assert (
        difference(y.double(), System(*(x.double() for x in (some.A, some.B, some.C, some.D)), 0.5).convolve(u)) < 1e-5
    )


def test_double_input_gets_a_double_answer_from_single_matrices(device):
    some = system("diagonal complex", device, dtype=torch.float32)
    u = inputs(some, device, t=300)
    found = some.recur(u)
    assert found.y.dtype == found.state.dtype == torch.complex128
    assert difference(some.convolve(u), found.y) < 1e-12


@pytest.mark.parametrize(
    ("B", "C", "D"),
    [
        ((4, 2), (4,), (2,)), ((4,), (3, 4), (3,)), ((4, 2), (2, 4), (2,)), ((4, 2), (2, 4), ()),
        ((4, 2), (3, 4), (3, 2)), ((4,), (4,), (1,)), ((4, 1), (1, 4), (1, 1)), ((4, 2), (3, 4), None),
    ],
)  # fmt: skip
def test_the_way_past_the_state_fits_inputs_and_outputs(B, C, D, device):
    A = parts("diagonal", device)[0]
    B, C = (torch.randn(shape, dtype=torch.float64, device=device) for shape in (B, C))
    D = 0.0 if D is None else torch.randn(D, dtype=torch.float64, device=device)
    some, still = System(A, B, C, D, 0.1), System(A, B, C, 0.0, 0.1)
    u = inputs(some, device)
    channels = u.unsqueeze(-1) if B.ndim == 1 else u
    if isinstance(D, float):
        past = torch.zeros_like(still.convolve(u))
    elif D.ndim == 2:
        past = channels @ D.T
    elif C.ndim == 1:
        past = (channels * D).sum(-1)
    else:
        past = channels * D
    assert difference(some.convolve(u), still.convolve(u) + past) < 1e-12
    assert difference(some.recur(u).y, still.recur(u).y + past) < 1e-12


@pytest.mark.parametrize("column", [True, False])
@pytest.mark.parametrize("row", [True, False])
def test_one_input_may_come_with_or_without_an_axis_of_its_own(column, row, device):
    A, B, C, _ = parts("dense", device)
    right = System(A, B, C)
    some = System(A, B[:, None] if column else B, C[None] if row else C)
    u = inputs(right, device)
    y = right.convolve(u)
    for face in (some.convolve, lambda u: some.recur(u).y):
        assert difference(face(u), y) < 1e-12
        assert difference(face(u[..., None]), y[..., None] if row else y) < 1e-12
    assert difference(some.step(u[:, 0]).y, y[:, 0]) < 1e-12
    assert difference(some.step(u[:, :1]).y, y[:, :1] if row else y[:, 0]) < 1e-12


@EVERY_KIND
@EVERY_METHOD
def test_gradients_pass_gradcheck_through_the_system_and_both_states(kind, method, device):
    step = torch.tensor(0.3, dtype=torch.float64, device=device)
    given = [*parts(kind, device), step]
    u = inputs(System(*given, method), device, t=4)
    before = torch.randn(2, 4, dtype=given[0].dtype, device=device)
    given = [x.requires_grad_() for x in (*given, u, before)]
    assert torch.autograd.gradcheck(lambda *x: tuple(System(*x[:5], method).recur(*x[5:])), given, fast_mode=True)
    assert torch.autograd.gradcheck(lambda *x: System(*x[:5], method).convolve(*x[5:]), given, fast_mode=True)


@pytest.mark.parametrize("method", ["zoh", "bilinear", "backward_euler", "mamba"])
@pytest.mark.parametrize("step", [1e-6, 1e-2, 1.0, 1e2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tiny_and_long_steps_of_modes_that_hardly_fade_have_finite_gradients(method, step, dtype, device):
    A = torch.tensor([0, -1e-12, -2j, -1e-12 + 300j, -2.0], dtype=dtype.to_complex(), device=device).requires_grad_()
    step = torch.tensor(step, dtype=dtype, device=device).requires_grad_()
    some = System(A, torch.ones_like(A), torch.ones_like(A), None, step, method)
    for face in (some.convolve, lambda u: some.recur(u).y):
        y = face(torch.ones(1, 65, dtype=dtype, device=device))
        gradients = torch.autograd.grad(y.abs().square().sum(), (A, step))
        assert all(torch.isfinite(x.abs()).all() for x in (y, *gradients))
        assert gradients[1] != 0


def test_parameters_that_change_change_the_next_call(device):
    A, B, C, D = parts("diagonal", device)
    some = System(A, B, C, D, 0.1)
    u = inputs(some, device)
    A.mul_(2)
    assert torch.equal(some.convolve(u), System(A, B, C, D, 0.1).convolve(u))


def test_a_system_prints_in_one_line_and_is_frozen(device):
    some = system("dense", device)
    assert repr(some) == "System(A (4, 4), B (4,), C (4,), D (1, 1), step 0.3, 'zoh', torch.float64)"
    with pytest.raises(AttributeError):
        some.A = some.B


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"A": (4, 3)}, r"A must be \(n n\) or \(n\).*\(4, 3\)"),
        ({"B": (3,)}, r"B \(n\) or \(n m\).*\(3,\)"),
        ({"C": (4, 2)}, r"C \(n\) or \(p n\).*\(4, 2\)"),
        ({"D": (2, 2)}, r"D must be a number.*\(1, 1\), but came as \(2, 2\)"),
        ({"method": "trapezoid"}, "zoh, bilinear, .*'trapezoid'"),
        ({"step": (3,)}, r"step must be one number, but came as \(3,\)"),
    ],
)
def test_a_system_that_cannot_be_is_refused_in_one_line(change, said):
    right = {"A": (4, 4), "B": (4,), "C": (4,), "D": (), "step": (), "method": "zoh"} | change
    with pytest.raises((ValueError, TypeError), match=said if "step" not in change else "step") as caught:
        System(**{name: torch.ones(shape) if isinstance(shape, tuple) else shape for name, shape in right.items()})
    assert "step" in change or "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda some: some.convolve(torch.ones(2, 5, 2)),
            r"convolve: u must be a floating tensor \(b t 1\) or \(b t\).*\(2, 5, 2\)",
        ),
        (lambda some: some.step(torch.ones(2, 5)), r"step: u must be a floating tensor \(b 1\) or \(b\)"),
        (lambda some: some.recur(torch.ones(2, 5, dtype=torch.int64)), "recur: .*int64"),
        (lambda some: some.recur(torch.ones(2, 5), torch.ones(1, 4)), r"state must be \(b n\) = \(2, 4\)"),
        (lambda some: some.recur(torch.ones(2, 5), form="scan"), "recurrent or auto for a dense A.*'scan'"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_one_line(call, said):
    with pytest.raises(ValueError, match=said):
        call(System(torch.eye(4), torch.ones(4), torch.ones(4)))


def test_a_complex_number_past_the_state_is_kept(device):
    one = torch.ones(1, device=device)
    assert System(-one, one, one, 2j).recur(one[None]).y.imag.item() == 2


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("step", "told"), [(0.25, "0.25"), (torch.tensor(0.25, requires_grad=True), "0.25")])
@pytest.mark.filterwarnings("error")
def test_a_system_is_printed_on_any_device(step, told, device):
    if isinstance(step, torch.Tensor) and device == "meta":
        step, told = step.to(device), "unknown"
    one = torch.ones(3, device=device)
    assert repr(System(-one, one, one, 0.0, step)) == (
        f"System(A (3,), B (3,), C (3,), D (1, 1), step {told}, 'zoh', torch.float32)"
    )


def test_a_system_is_printed_inside_a_transform():
    one = torch.ones(3)
    told = []

    def run(step):
        told.append(repr(System(-one, one, one, 0.0, step)))
        return step

    torch.vmap(run)(torch.tensor([0.1, 0.2]))
    assert "step unknown" in told[0]
