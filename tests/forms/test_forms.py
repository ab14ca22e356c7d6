"""Every form against the dense float64 definition: values, states, gradients, cuts, masks, packings."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import lavagna as lv
from lavagna.algebra import dense
from lavagna.forms import FORMS
from transitions import TRANSITIONS, Call, Sizes, call, difference, leaves

EVERY_FORM = pytest.mark.parametrize("form", FORMS)
EVERY_TRANSITION = pytest.mark.parametrize("name", TRANSITIONS)
EVERY_READ = pytest.mark.parametrize("read", ["after", "before"])


def wide(some: Call) -> Call:
    """The same numbers in float64, as new leaves that want gradients."""
    copies = {id(x): x.detach().to(torch.complex128 if x.is_complex() else torch.float64) for x in leaves(some)}
    for x in copies.values():
        x.requires_grad_()
    return Call(some.a.map(lambda x: copies[id(x)]), *(copies[id(x)] for x in some[1:]))


def gradients(some: Call, output: torch.Tensor, state: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of a fixed random reading of output and state, for every tensor of the call."""
    generator = torch.Generator(device="cpu").manual_seed(1)
    loss = 0.0
    for x in (output, state):
        weight = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
        loss = loss + (torch.view_as_real(x).sum(-1) if x.is_complex() else x).mul(weight).sum()
    return list(torch.autograd.grad(loss, leaves(some)))


def held(some: Call, tolerance: float, read: str = "after", mask=None, **options) -> None:
    """Assert that a call equals the definition, forward, and backward ten times (in float64 a hundred times) looser."""
    right = wide(some)
    true = dense.recur(*right, read=read, mask=mask)
    mine = Call(some.a, *some[1:])
    for x in leaves(mine):
        x.requires_grad_()
    ours = lv.recur(*mine, read=read, mask=mask, **options)
    for one, other in zip(ours, true, strict=True):
        assert torch.isfinite(torch.view_as_real(one) if one.is_complex() else one).all()
        assert difference(one, other) <= tolerance
    slack = 100 if tolerance < 1e-8 else 10
    grads, trues = gradients(mine, *ours), gradients(right, *true)
    scale = max(g.abs().max().item() for g in trues)
    for one, other in zip(grads, trues, strict=True):
        assert torch.isfinite(torch.view_as_real(one) if one.is_complex() else one).all()
        assert (one - other).abs().max().item() <= slack * tolerance * max(other.abs().max().item(), 1e-3 * scale)


@EVERY_FORM
@EVERY_TRANSITION
@EVERY_READ
def test_a_form_is_the_definition_in_float64(form, name, read, device):
    held(call(name, Sizes(t=9), device=device), 1e-12, read, form=form, chunk=4)


@EVERY_FORM
@EVERY_TRANSITION
def test_a_form_is_the_definition_in_float32(form, name, device):
    held(call(name, Sizes(b=1, t=70, h=1, hv=1, k=8, v=3), device=device, dtype=torch.float32), 1e-5, form=form)


@EVERY_FORM
@EVERY_TRANSITION
@pytest.mark.parametrize(
    "sizes", [Sizes(t=1), Sizes(t=3, h=3, hv=3, k=3, v=3), Sizes(1, 5, 1, 3, 1, 1), Sizes(t=2, k=1)]
)
def test_small_and_equal_sizes_hide_nothing(form, name, sizes, device):
    held(call(name, sizes, device=device), 1e-12, form=form, chunk=2)


@EVERY_TRANSITION
@given(data=st.data())
def test_any_cut_equals_the_whole(name, data, device):
    t = data.draw(st.integers(1, 40))
    some = call(name, Sizes(b=1, t=t, h=1, hv=2, k=4, v=3), device=device)
    whole = lv.recur(*some, form=data.draw(st.sampled_from(sorted(FORMS))))
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, t), max_size=4))), t]
    state, pieces = some.state, []
    for i, j in zip(cuts, cuts[1:], strict=False):
        part = Call(*_between(some, i, j))._replace(state=state)
        chunk = data.draw(st.integers(1, t + 9))
        output, state = lv.recur(*part, form=data.draw(st.sampled_from(sorted(FORMS))), chunk=chunk)
        pieces.append(output)
    assert difference(torch.cat(pieces, 1), whole.output) < 1e-12
    assert difference(state, whole.state) < 1e-12


def _between(some: Call, i: int, j: int) -> Call:
    """Steps i to j of a call; parts that are constant in time stay whole, shared tensors stay shared."""
    cut = {id(x): x[:, i:j] if x.shape[1] > 1 or some.q.shape[1] == 1 else x for x in leaves(some)}
    a = some.a.map(lambda x: x if x.shape[1] == 1 != some.q.shape[1] else cut[id(x)])
    return Call(a, *(cut[id(x)] for x in some[1:4]), some.state)


@EVERY_FORM
@EVERY_TRANSITION
@EVERY_READ
def test_a_masked_step_changes_nothing_whatever_it_holds(form, name, read, device):
    some = call(name, Sizes(t=9), device=device)
    mask = torch.rand(2, 9, device=device) > 0.4
    mask[0, :3] = False
    mask[1] = False
    right = dense.recur(*some, read=read, mask=mask)
    spoiled = {id(x): x.clone() for x in leaves(some)}
    for x in spoiled.values():
        if x.shape[:2] == (2, 9):
            x[~mask] = math.nan
    ruined = Call(some.a.map(lambda x: spoiled[id(x)]), *(spoiled[id(x)] for x in some[1:]))
    for x in leaves(ruined):
        x.requires_grad_()
    for kind in (torch.bool, torch.int64, torch.float32):
        ours = lv.recur(*ruined, read=read, mask=mask.to(kind), form=form, chunk=4)
        assert difference(ours.output, right[0]) < 1e-12
        assert difference(ours.state, right[1]) < 1e-12
        assert not ours.output[~mask].any()
    assert difference(ours.state[1], some.state[1]) == 0
    for x, gradient in zip(leaves(ruined), gradients(ruined, *ours), strict=True):
        if x.shape[:2] == (2, 9):
            assert not gradient[~mask].any()
        assert torch.isfinite(gradient.real).all()


@EVERY_FORM
@EVERY_TRANSITION
def test_packed_sequences_equal_each_one_apart(form, name, device):
    offsets = [0, 3, 3, 20, 21, 26]
    some = call(name, Sizes(b=1, t=26, h=1, hv=2), device=device)
    state = torch.randn(5, 2, 3, 5, dtype=torch.float64, device=device)
    mask = torch.rand(1, 26, device=device) > 0.2
    for where in (None, mask):
        packed = lv.recur(*some[:4], state, form=form, chunk=4, cu_seqlens=offsets, mask=where)
        for n, (i, j) in enumerate(zip(offsets, offsets[1:], strict=False)):
            own = None if where is None else where[:, i:j]
            apart = lv.recur(*_between(some, i, j)[:4], state[n : n + 1], form="recurrent", mask=own)
            assert difference(packed.output[:, i:j], apart.output) < 1e-12
            assert difference(packed.state[n : n + 1], apart.state) < 1e-12
    for kind in (torch.int32, torch.int64):
        again = lv.recur(
            *some[:4], state, form=form, chunk=4, cu_seqlens=torch.tensor(offsets, dtype=kind, device=device)
        )
        assert torch.equal(again.output, lv.recur(*some[:4], state, form=form, chunk=4, cu_seqlens=offsets).output)


@EVERY_FORM
def test_no_gradient_and_no_number_crosses_a_border(form, device):
    some = call("gated householder", Sizes(b=1, t=8, h=1, hv=1), device=device)
    for x in leaves(some):
        x.requires_grad_()
    before = lv.recur(*some[:4], form=form, cu_seqlens=[0, 3, 8])
    for x, gradient in zip(
        leaves(some)[:-1], torch.autograd.grad(before.output[:, 3:].sum(), leaves(some)[:-1]), strict=True
    ):
        assert x.shape[1] == 8 and not gradient[:, :3].any() and gradient[:, 3:].any()
    changed = {id(x): x.detach().clone() for x in leaves(some)}
    for x in changed.values():
        x[:, :3] += 1
    other = Call(some.a.map(lambda x: changed[id(x)]), *(changed[id(x)] for x in some[1:]))
    after = lv.recur(*other[:4], form=form, cu_seqlens=[0, 3, 8])
    assert torch.equal(before.output[:, 3:], after.output[:, 3:])
    assert torch.equal(before.state[1], after.state[1])


@EVERY_FORM
@pytest.mark.parametrize("name", ["scalar", "diagonal", "householder", "gated householder", "dplr"])
def test_gradients_pass_gradcheck_through_both_states(form, name, device):
    some = call(name, Sizes(b=1, t=5, h=1, hv=2, k=3, v=2), device=device)
    tensors = leaves(some)
    for x in tensors:
        x.requires_grad_()

    def run(*new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        swap = {id(old): x for old, x in zip(tensors, new, strict=True)}
        a = some.a.map(lambda x: swap[id(x)])
        return tuple(lv.recur(a, *(swap[id(x)] for x in some[1:]), form=form, chunk=2))

    assert torch.autograd.gradcheck(run, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, tensors, fast_mode=True)


@EVERY_FORM
@pytest.mark.parametrize("wall", [-30.0, -1e4, -math.inf])
@pytest.mark.parametrize("kind", ["scalar", "diagonal", "gated", "gated diagonal", "dplr"])
def test_strong_decay_is_safe(form, wall, kind, device):
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
    held(some, 1e-5, form=form)
    if wall == -30.0 and kind == "diagonal":
        assert difference(lv.recur(a, one, one, one[..., :1], form=form).output, 2 * one[..., :1]) < 1e-7


@EVERY_FORM
def test_a_hard_reset_leaves_exactly_the_token_itself(form, device):
    some = call("diagonal", Sizes(b=1, t=5, h=1, hv=1), device=device, dtype=torch.float32)
    log_decay = some.a.log_decay.clone()
    log_decay[:, 4] = -math.inf
    state = lv.recur(lv.diagonal(log_decay), *some[1:], form=form).state
    assert torch.equal(state[0, 0], torch.outer(some.v[0, 4, 0], some.k[0, 4, 0]))


@EVERY_FORM
def test_edges_of_the_delta_rule(form, device):
    def run(k: float, beta: float, values: list[float], state: float = 0.0) -> list[float]:
        v = torch.tensor(values, device=device).reshape(1, -1, 1, 1)
        key, dose = torch.full_like(v, k), torch.full_like(v, beta)
        start = torch.full((1, 1, 1, 1), state, device=device)
        a = lv.householder(key.requires_grad_(), dose)
        out, last = lv.recur(a, torch.ones_like(v), key, dose * v, start, form=form)
        last.sum().backward()
        assert torch.isfinite(key.grad).all()
        return out.flatten().tolist()

    assert run(math.sqrt(3), 1.0, [1.0] * 16)[-1] == pytest.approx(-37836.65, rel=1e-5)
    assert run(1.0, 2.0, [1.0] * 6) == pytest.approx([2, 0, 2, 0, 2, 0], abs=1e-6)
    assert run(0.7, 0.0, [1.0] * 5, 5.0) == pytest.approx([5.0] * 5)
    assert run(0.0, 1.0, [1.0] * 5, 5.0) == pytest.approx([5.0] * 5)


@EVERY_FORM
@pytest.mark.parametrize(("scale", "largest"), [(0.25, 10), (0.3, 100), (0.5, 1e9)])
def test_long_keys_diverge_as_the_definition_does(form, scale, largest, device):
    t, k = 128, 32
    key = torch.randn(1, t, 1, k, device=device).half().float() * scale
    one = torch.ones(1, t, 1, device=device)
    some = Call(lv.householder(key, one), torch.randn_like(key), key, torch.randn(1, t, 1, 4, device=device), None)
    true = dense.recur(*some)
    assert true[0].abs().max() > largest
    ours = lv.recur(*some, form=form)
    assert difference(ours.output, true[0]) < 1e-3
    assert difference(ours.state, true[1]) < 1e-3


@EVERY_FORM
def test_the_marks_of_three_forms(form, device):
    one = torch.ones(1, 3, 1, 1, dtype=torch.float64, device=device)
    v = torch.tensor([6.0, 7.0, 8.0], dtype=torch.float64, device=device).reshape(1, 3, 1, 1)
    out = lv.recur(lv.scalar((one / 2).log()), one, one, v, form=form, chunk=2).output
    assert out.flatten().tolist() == pytest.approx([6, 10, 13], abs=1e-14)


@EVERY_FORM
def test_the_gradient_of_the_last_state_alone(form, device):
    g = torch.full((1, 3, 1, 1), math.log(0.5), dtype=torch.float64, device=device, requires_grad=True)
    one = torch.ones(1, 3, 1, 1, dtype=torch.float64, device=device)
    v = one.clone().requires_grad_()
    start = torch.full((1, 1, 1, 1), 4.0, dtype=torch.float64, device=device, requires_grad=True)
    state = lv.recur(lv.scalar(g), one, one, v, start, form=form, chunk=2).state
    state.backward(torch.ones_like(state))
    assert state.item() == pytest.approx(2.25)
    assert start.grad.item() == pytest.approx(0.125)
    assert v.grad.flatten().tolist() == pytest.approx([0.25, 0.5, 1])
    # By the logarithm, so the decay's own gradients 1, 1.5, 2.5 times the decay.
    assert g.grad.flatten().tolist() == pytest.approx([0.5, 0.75, 1.25])


@EVERY_FORM
def test_the_ragged_tail_reads_its_own_decay(form, device):
    g = torch.full((1, 1, 1, 1), -0.1, dtype=torch.float64, device=device)
    one = torch.ones(1, 70, 1, 1, dtype=torch.float64, device=device)
    for chunk in (1, 3, 16, 64, 128, 79):
        assert lv.recur(lv.scalar(g), one, one, one, form=form, chunk=chunk).state.item() == pytest.approx(
            10.498750, abs=5e-7
        )


@EVERY_FORM
@EVERY_TRANSITION
def test_the_future_never_reaches_the_past(form, name, device):
    some = call(name, Sizes(t=9), device=device, dtype=torch.float32)
    before = lv.recur(*some, form=form, chunk=4).output
    changed = {id(x): x.clone() for x in leaves(some)}
    for x in changed.values():
        if x.shape[1] == 9:
            x[:, 6:] = x[:, 6:] * 0.5
    other = Call(some.a.map(lambda x: changed[id(x)]), *(changed[id(x)] for x in some[1:]))
    assert torch.equal(lv.recur(*other, form=form, chunk=4).output[:, :6], before[:, :6])
