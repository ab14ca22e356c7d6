"""Transitions: what they are as matrices, how they relate, and what they refuse."""

import pytest
import torch

import lavagna as lv
from lavagna.algebra import dense
from lavagna.algebra.affine import Affine, compose, matrices, survive
from transitions import TRANSITIONS, Sizes, call, difference, unit


@pytest.mark.parametrize("name", TRANSITIONS)
def test_factors_multiply_out_to_the_dense_matrix(name, device):
    sizes = Sizes(b=1, t=2, h=2, hv=2)
    a = call(name, sizes, device=device).a
    factors = a.factors()
    for t in range(sizes.t):
        for h in range(sizes.hv):
            right = dense.matrix(a, sizes.k, 0, t, h).to(device)
            at = [None if x is None else x[0, t % x.shape[1], h % x.shape[2]] for x in factors[:3]]
            ours = factors._replace(log_decay=at[0], erase=at[1], right=at[2])
            eye = torch.eye(sizes.k, dtype=right.dtype, device=device)
            if ours.erase is not None:
                assert difference(matrices(ours, sizes.k), right) < 1e-15
            else:
                assert difference(survive(Affine(ours.log_decay, None, eye), eye), right) < 1e-15


def test_composed_maps_act_like_one_after_the_other(device):
    where = {"device": device, "dtype": torch.float64}
    first, then = (Affine(torch.randn(1, 1, 4, **where), None, torch.randn(1, 3, 4, **where)) for _ in range(2))
    state = torch.randn(1, 3, 4, **where)
    one = (state * first.log_decay.exp() + first.write) * then.log_decay.exp() + then.write
    both = compose(first, then)
    assert difference(survive(both, state) + both.write, one) < 1e-14


def test_gated_householder_is_the_special_case_of_dplr(device):
    some = call("gated householder, diagonal", device=device)
    a = some.a
    spread = a.beta * a.right.repeat_interleave(2, 2)
    general = lv.dplr(a.log_decay, -a.log_decay.exp() * spread, a.right)
    one, other = lv.recur(*some), lv.recur(general, *some[1:])
    assert difference(other.output, one.output) < 1e-13
    assert difference(other.state, one.state) < 1e-13


def test_gates_of_exactly_one_leave_the_ungated_rule(device):
    sizes = Sizes(t=65)
    delta = call("householder", sizes, device=device)
    plain = lv.recur(*delta)
    for zero in (0.0, -0.0):
        for last in (1, sizes.k):
            log_decay = torch.full((1, 1, 1, last), zero, dtype=torch.float64, device=device)
            gated = lv.gated_householder(log_decay, delta.a.right, delta.a.beta)
            assert difference(lv.recur(gated, *delta[1:]).output, plain.output) < 1e-14
            summed = lv.recur(lv.diagonal(log_decay.expand(1, 1, 1, sizes.k)), *delta[1:])
            assert difference(summed.output, lv.recur(lv.identity(), *delta[1:]).output) < 1e-14


def test_decay_comes_before_the_error_is_taken(device):
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64, device=device)
    a = lv.gated_householder(torch.log(one / 2), one, one)
    state = lv.recur(a, one, one, 10 * one, 4 * one).state
    assert state.item() == pytest.approx(10, abs=1e-14)


def test_rank_one_factor_has_one_eigenvalue_apart(device):
    k = unit(1, 1, 1, 6, dtype=torch.float64, device=device)
    for beta in (0.0, 0.3, 1.0, 2.0):
        a = lv.householder(k, torch.full((1, 1, 1), beta, dtype=torch.float64, device=device))
        values = torch.linalg.eigvalsh(dense.matrix(a, 6, 0, 0, 0))
        assert values[1:].sub(1).abs().max() < 1e-14
        assert values[0].item() == pytest.approx(1 - beta, abs=1e-14)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: lv.scalar(x(2, 3)), r"scalar: log_decay must be a tensor with axes \(b, t, h, 1\).*\(2, 3\)"),
        (lambda x: lv.scalar(x(2, 3, 1, 4)), r"scalar: log_decay must have last axis 1.*\(2, 3, 1, 4\).*diagonal"),
        (lambda x: lv.diagonal(x(3, 4, 5)), r"diagonal: log_decay .*\(3, 4, 5\)"),
        (lambda x: lv.diagonal(x(1, 3, 4, 5), step=x(1, 3, 4, 5)), r"diagonal: step is one number per head"),
        (lambda x: lv.scalar(x(1, 3, 4, 1), step=x(1, 3, 4)), r"scalar: step .*\(b, t, h, 1\).*\(1, 3, 4\)"),
        (lambda x: lv.householder(x(1, 3, 4), x(1, 3, 4)), r"householder: k .*\(1, 3, 4\)"),
        (lambda x: lv.householder(x(1, 3, 4, 5), x(1, 3)), r"householder: beta .*\(1, 3\)"),
        (lambda x: lv.gated_householder(x(4), x(1, 3, 4, 5), x(1, 3, 4)), r"gated_householder: log_decay .*\(4,\)"),
        (lambda x: lv.dplr(x(1, 3, 4, 5), x(1, 3, 4), x(1, 3, 4, 5)), r"dplr: left .*\(1, 3, 4\)"),
    ],
)
def test_a_part_of_the_wrong_shape_is_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build(torch.zeros)
