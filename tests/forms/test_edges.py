"""Every form where it is easy to go wrong: strong decay, long keys, ragged tails, the worked numbers."""

import math

import pytest
import torch

import lavagna as lv
from definition import held
from lavagna.algebra import dense
from transitions import EVERY_WAY, Call, Sizes, call, difference


@EVERY_WAY
@pytest.mark.parametrize("wall", [-30.0, -1e4, -math.inf])
@pytest.mark.parametrize("kind", ["scalar", "diagonal", "gated", "gated diagonal", "dplr"])
def test_strong_decay_is_safe(form, backend, wall, kind, device):
    t, k = 64, 2
    one = torch.ones(1, t, 1, k, device=device)
    last = 1 if kind in ("scalar", "gated") else k
    log_decay = torch.full((1, t, 1, last), -0.01, device=device)
    log_decay[:, 20] = wall
    if wall == -30.0:
        log_decay[:] = wall
    beta = torch.full((1, t, 1), 0.4, device=device)
    key = one / math.sqrt(k)
    a = {
        "scalar": lambda: lv.scalar(log_decay),
        "diagonal": lambda: lv.diagonal(log_decay),
        "gated": lambda: lv.gated_householder(log_decay, key, beta),
        "gated diagonal": lambda: lv.gated_householder(log_decay, key, beta),
        "dplr": lambda: lv.dplr(log_decay, -0.1 * key, key),
    }[kind]()
    some = Call(
        a,
        one.clone(),
        key if "gated" in kind else one.clone(),
        one[..., :1].clone(),
        torch.ones(1, 1, 1, k, device=device),
    )
    held(some, 1e-5, form=form, backend=backend)
    if wall == -30.0 and kind == "diagonal":
        assert (
            difference(lv.recur(a, one, one, one[..., :1], form=form, backend=backend).output, 2 * one[..., :1]) < 1e-7
        )


@EVERY_WAY
@pytest.mark.parametrize("kind", ["scalar", "diagonal", "gated", "dplr"])
@pytest.mark.parametrize("angle", [0.0, math.pi])
def test_a_complex_hard_reset_is_safe(form, backend, kind, angle, device):
    some = call("householder", Sizes(t=19), device=device)
    s, where = Sizes(t=19), {"dtype": torch.float64, "device": device}
    last = 1 if kind in ("scalar", "gated") else s.k
    log_decay = torch.complex(
        torch.full((s.b, s.t, s.h, last), -0.1, **where), torch.randn(s.b, s.t, s.h, last, **where)
    )
    log_decay[:, [4, 5, 11]] = complex(-math.inf, angle)
    a = {
        "scalar": lambda: lv.scalar(log_decay),
        "diagonal": lambda: lv.diagonal(log_decay),
        "gated": lambda: lv.gated_householder(log_decay, some.k, some.a.beta),
        "dplr": lambda: lv.dplr(log_decay, -0.1 * some.k, some.k),
    }[kind]()
    held(Call(a, *some[1:]), 1e-12, form=form, backend=backend, chunk=5)


@EVERY_WAY
@pytest.mark.parametrize("angle", [None, math.pi])
def test_a_hard_reset_with_a_step_is_one_without(form, backend, angle, device):
    some = call("scalar", Sizes(t=19), device=device)
    log_decay = some.a.log_decay if angle is None else torch.complex(some.a.log_decay, some.a.log_decay)
    log_decay[:, [4, 5]] = -math.inf if angle is None else complex(-math.inf, angle)
    step = (torch.rand_like(some.a.log_decay) + 0.1).requires_grad_()
    scaled = log_decay * step.detach() if angle is None else torch.complex(log_decay.real * step, log_decay.imag * step)
    ours = lv.recur(lv.scalar(log_decay, step=step), *some[1:], form=form, backend=backend)
    right = dense.recur(lv.scalar(scaled.detach()), *some[1:])
    assert difference(ours.output, right[0]) < 1e-12 and difference(ours.state, right[1]) < 1e-12
    (gradient,) = torch.autograd.grad(ours.output.real.sum() + ours.state.real.sum(), step)
    assert gradient.isfinite().all() and gradient[:, 6:].any() and not gradient[:, [4, 5]].any()


@EVERY_WAY
def test_a_hard_reset_leaves_exactly_the_token_itself(form, backend, device):
    some = call("diagonal", Sizes(b=1, t=5, h=1, hv=1), device=device, dtype=torch.float32)
    log_decay = some.a.log_decay.clone()
    log_decay[:, 4] = -math.inf
    state = lv.recur(lv.diagonal(log_decay), *some[1:], form=form, backend=backend).state
    assert torch.equal(state[0, 0], torch.outer(some.v[0, 4, 0], some.k[0, 4, 0]))


@EVERY_WAY
def test_edges_of_the_delta_rule(form, backend, device):
    def run(k: float, beta: float, values: list[float], state: float = 0.0) -> list[float]:
        v = torch.tensor(values, device=device).reshape(1, -1, 1, 1)
        key, dose = torch.full_like(v, k), torch.full_like(v, beta)
        start = torch.full((1, 1, 1, 1), state, device=device)
        a = lv.householder(key.requires_grad_(), dose)
        out, last = lv.recur(a, torch.ones_like(v), key, dose * v, start, form=form, backend=backend)
        last.sum().backward()
        assert torch.isfinite(key.grad).all()
        return out.flatten().tolist()

    assert run(math.sqrt(3), 1.0, [1.0] * 16)[-1] == pytest.approx(-37836.65, rel=1e-5)
    assert run(1.0, 2.0, [1.0] * 6) == pytest.approx([2, 0, 2, 0, 2, 0], abs=1e-6)
    assert run(0.7, 0.0, [1.0] * 5, 5.0) == pytest.approx([5.0] * 5)
    assert run(0.0, 1.0, [1.0] * 5, 5.0) == pytest.approx([5.0] * 5)


@EVERY_WAY
@pytest.mark.parametrize(("scale", "largest"), [(0.25, 10), (0.3, 100), (0.5, 1e9)])
def test_long_keys_diverge_as_the_definition_does(form, backend, scale, largest, device):
    t, k = 128, 32
    key = torch.randn(1, t, 1, k, device=device).half().float() * scale
    one = torch.ones(1, t, 1, device=device)
    some = Call(lv.householder(key, one), torch.randn_like(key), key, torch.randn(1, t, 1, 4, device=device), None)
    true = dense.recur(*some)
    assert true[0].abs().max() > largest
    ours = lv.recur(*some, form=form, backend=backend)
    assert difference(ours.output, true[0]) < 1e-3
    assert difference(ours.state, true[1]) < 1e-3


@EVERY_WAY
def test_the_marks_of_three_forms(form, backend, device):
    one = torch.ones(1, 3, 1, 1, dtype=torch.float64, device=device)
    v = torch.tensor([6.0, 7.0, 8.0], dtype=torch.float64, device=device).reshape(1, 3, 1, 1)
    out = lv.recur(lv.scalar((one / 2).log()), one, one, v, form=form, backend=backend, chunk=2).output
    assert out.flatten().tolist() == pytest.approx([6, 10, 13], abs=1e-14)


@EVERY_WAY
def test_the_gradient_of_the_last_state_alone(form, backend, device):
    g = torch.full((1, 3, 1, 1), math.log(0.5), dtype=torch.float64, device=device, requires_grad=True)
    one = torch.ones(1, 3, 1, 1, dtype=torch.float64, device=device)
    v = one.clone().requires_grad_()
    start = torch.full((1, 1, 1, 1), 4.0, dtype=torch.float64, device=device, requires_grad=True)
    state = lv.recur(lv.scalar(g), one, one, v, start, form=form, backend=backend, chunk=2).state
    state.backward(torch.ones_like(state))
    assert state.item() == pytest.approx(2.25)
    assert start.grad.item() == pytest.approx(0.125)
    assert v.grad.flatten().tolist() == pytest.approx([0.25, 0.5, 1])
    # By the logarithm, so the decay's own gradients 1, 1.5, 2.5 times the decay.
    assert g.grad.flatten().tolist() == pytest.approx([0.5, 0.75, 1.25])


@EVERY_WAY
def test_the_ragged_tail_reads_its_own_decay(form, backend, device):
    g = torch.full((1, 1, 1, 1), -0.1, dtype=torch.float64, device=device)
    one = torch.ones(1, 70, 1, 1, dtype=torch.float64, device=device)
    for chunk in (1, 3, 16, 64, 128, 79):
        assert lv.recur(
            lv.scalar(g), one, one, one, form=form, backend=backend, chunk=chunk
        ).state.item() == pytest.approx(10.498750, abs=5e-7)


@pytest.mark.parametrize("form", ["recurrent", "scan", "chunkwise"])
@pytest.mark.parametrize("power", [-12, -20, -25])
def test_a_constant_slow_decay_is_not_rounded_away(form, power, device):
    # Rounded to float32 once a step, a decay this near to 1 would be off by up to 1e-3 after 20,000 steps.
    t = 20_000
    g = torch.full((1, 1, 1, 1), math.log1p(-(2.0**power)), dtype=torch.float64, device=device).float()
    q, k, v = (torch.randn(1, t, 1, 2, device=device).abs() for _ in range(3))
    true = lv.recur(lv.scalar(g.double()), q.double(), k.double(), v.double(), form="scan", backend="torch")
    ours = lv.recur(lv.scalar(g), q, k, v, form=form, backend="torch")
    assert difference(ours.output, true.output) < 1e-5
    assert difference(ours.state, true.state) < 1e-5
