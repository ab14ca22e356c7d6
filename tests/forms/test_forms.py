"""Every form against the dense float64 definition: values, states, gradients, cuts, masks, packings."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

import lavagna as lv
from definition import between, gradients, held
from lavagna.algebra import dense
from lavagna.forms import FORMS
from transitions import EVERY_WAY, TRANSITIONS, Call, Sizes, call, difference, leaves

EVERY_TRANSITION = pytest.mark.parametrize("name", TRANSITIONS)
EVERY_READ = pytest.mark.parametrize("read", ["after", "before"])


@EVERY_WAY
@EVERY_TRANSITION
@EVERY_READ
def test_a_form_is_the_definition_in_float64(form, backend, name, read, device):
    held(call(name, Sizes(t=9), device=device), 1e-12, read, form=form, backend=backend, chunk=4)


@EVERY_WAY
@EVERY_TRANSITION
def test_a_form_is_the_definition_in_float32(form, backend, name, device):
    held(
        call(name, Sizes(b=1, t=70, h=1, hv=1, k=8, v=3), device=device, dtype=torch.float32),
        1e-5,
        form=form,
        backend=backend,
    )


@EVERY_WAY
@EVERY_TRANSITION
@pytest.mark.parametrize(
    "sizes", [Sizes(t=1), Sizes(t=3, h=3, hv=3, k=3, v=3), Sizes(1, 5, 1, 3, 1, 1), Sizes(t=2, k=1)]
)
def test_small_and_equal_sizes_hide_nothing(form, backend, name, sizes, device):
    held(call(name, sizes, device=device), 1e-12, form=form, backend=backend, chunk=2)


@EVERY_TRANSITION
@given(data=st.data())
def test_any_cut_equals_the_whole(name, data, device):
    t = data.draw(st.integers(1, 40))
    some = call(name, Sizes(b=1, t=t, h=1, hv=2, k=4, v=3), device=device)
    whole = lv.recur(*some, form=data.draw(st.sampled_from(sorted(FORMS))), backend="torch")
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, t), max_size=4))), t]
    state, pieces = some.state, []
    for i, j in zip(cuts, cuts[1:], strict=False):
        part = Call(*between(some, i, j))._replace(state=state)
        chunk = data.draw(st.integers(1, t + 9))
        output, state = lv.recur(*part, form=data.draw(st.sampled_from(sorted(FORMS))), chunk=chunk, backend="torch")
        pieces.append(output)
    assert difference(torch.cat(pieces, 1), whole.output) < 1e-12
    assert difference(state, whole.state) < 1e-12


@EVERY_WAY
@EVERY_TRANSITION
@EVERY_READ
def test_a_masked_step_changes_nothing_whatever_it_holds(form, backend, name, read, device):
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
        ours = lv.recur(*ruined, read=read, mask=mask.to(kind), form=form, backend=backend, chunk=4)
        assert difference(ours.output, right[0]) < 1e-12
        assert difference(ours.state, right[1]) < 1e-12
        assert not ours.output[~mask].any()
    assert difference(ours.state[1], some.state[1]) == 0
    for x, gradient in zip(leaves(ruined), gradients(ruined, *ours), strict=True):
        if x.shape[:2] == (2, 9):
            assert not gradient[~mask].any()
        assert torch.isfinite(gradient.real).all()


@EVERY_WAY
@EVERY_TRANSITION
def test_packed_sequences_equal_each_one_apart(form, backend, name, device):
    offsets = [0, 3, 3, 20, 21, 26]
    some = call(name, Sizes(b=1, t=26, h=1, hv=2), device=device)
    state = torch.randn(5, 2, 3, 5, dtype=torch.float64, device=device)
    mask = torch.rand(1, 26, device=device) > 0.2
    for where in (None, mask):
        packed = lv.recur(*some[:4], state, form=form, backend=backend, chunk=4, cu_seqlens=offsets, mask=where)
        for n, (i, j) in enumerate(zip(offsets, offsets[1:], strict=False)):
            own = None if where is None else where[:, i:j]
            apart = lv.recur(*between(some, i, j)[:4], state[n : n + 1], form="recurrent", backend="torch", mask=own)
            assert difference(packed.output[:, i:j], apart.output) < 1e-12
            assert difference(packed.state[n : n + 1], apart.state) < 1e-12
    for kind in (torch.int32, torch.int64):
        again = lv.recur(
            *some[:4],
            state,
            form=form,
            backend=backend,
            chunk=4,
            cu_seqlens=torch.tensor(offsets, dtype=kind, device=device),
        )
        assert torch.equal(
            again.output, lv.recur(*some[:4], state, form=form, backend=backend, chunk=4, cu_seqlens=offsets).output
        )


@EVERY_WAY
def test_no_gradient_and_no_number_crosses_a_border(form, backend, device):
    some = call("gated householder", Sizes(b=1, t=8, h=1, hv=1), device=device)
    for x in leaves(some):
        x.requires_grad_()
    before = lv.recur(*some[:4], form=form, backend=backend, cu_seqlens=[0, 3, 8])
    for x, gradient in zip(
        leaves(some)[:-1], torch.autograd.grad(before.output[:, 3:].sum(), leaves(some)[:-1]), strict=True
    ):
        assert x.shape[1] == 8 and not gradient[:, :3].any() and gradient[:, 3:].any()
    changed = {id(x): x.detach().clone() for x in leaves(some)}
    for x in changed.values():
        x[:, :3] += 1
    other = Call(some.a.map(lambda x: changed[id(x)]), *(changed[id(x)] for x in some[1:]))
    after = lv.recur(*other[:4], form=form, backend=backend, cu_seqlens=[0, 3, 8])
    assert torch.equal(before.output[:, 3:], after.output[:, 3:])
    assert torch.equal(before.state[1], after.state[1])


@EVERY_WAY
@pytest.mark.parametrize("name", ["scalar", "diagonal", "householder", "gated householder", "dplr"])
def test_gradients_pass_gradcheck_through_both_states(form, backend, name, device):
    some = call(name, Sizes(b=1, t=5, h=1, hv=2, k=3, v=2), device=device)
    tensors = leaves(some)
    for x in tensors:
        x.requires_grad_()

    def run(*new: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        swap = {id(old): x for old, x in zip(tensors, new, strict=True)}
        a = some.a.map(lambda x: swap[id(x)])
        return tuple(lv.recur(a, *(swap[id(x)] for x in some[1:]), form=form, backend=backend, chunk=2))

    assert torch.autograd.gradcheck(run, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, tensors, fast_mode=True)


@EVERY_WAY
@EVERY_TRANSITION
def test_the_future_never_reaches_the_past(form, backend, name, device):
    some = call(name, Sizes(t=9), device=device, dtype=torch.float32)
    before = lv.recur(*some, form=form, backend=backend, chunk=4).output
    changed = {id(x): x.clone() for x in leaves(some)}
    for x in changed.values():
        if x.shape[1] == 9:
            x[:, 6:] = x[:, 6:] * 0.5
    other = Call(some.a.map(lambda x: changed[id(x)]), *(changed[id(x)] for x in some[1:]))
    assert torch.equal(lv.recur(*other, form=form, backend=backend, chunk=4).output[:, :6], before[:, :6])
