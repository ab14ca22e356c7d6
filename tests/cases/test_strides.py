"""Tensors that lie in memory in any way: slices, transposes, expansions, and the gradients that such losses send."""

import pytest
import torch

import lavagna as lv
from lavagna.forms.convolution import convolve
from transitions import EVERY_WAY, TRANSITIONS, Sizes, call, difference, leaves

B, T, H, K = 2, 6, 2, 4
LOSSES = {
    "sum": lambda y: y.abs().sum(),
    "one channel": lambda y: y[..., 0].abs().sum(),
    "twice": lambda y: torch.cat([y, y]).abs().sum(),
}


def sliced(x):
    """`x` as every second step and a few columns of a wider tensor."""
    wide = x.new_zeros(x.shape[0], 2 * x.shape[1], x.shape[2], x.shape[3] + 3)
    wide[:, ::2, :, 1 : 1 + x.shape[3]] = x
    return wide[:, ::2, :, 1 : 1 + x.shape[3]]


def heads_first(x):
    """`x` as a view of (b, h, t, ·)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def expanded(x):
    """One row and one head of `x`, spread over all rows and heads."""
    return x[:1, :, :1].expand(x.shape[0], -1, x.shape[2], -1)


@EVERY_WAY
@pytest.mark.parametrize("name", TRANSITIONS)
@pytest.mark.parametrize(
    ("view", "loss"),
    [(sliced, "one channel"), (heads_first, "twice"), (expanded, "sum")],
    ids=["sliced", "heads first", "expanded"],
)
def test_a_view_gives_the_numbers_and_gradients_of_its_copy(form, backend, name, view, loss, device):
    some = call(name, Sizes(b=B, t=T, h=H, hv=H, k=K, v=K), device=device)
    views = {id(x): view(x.detach()) for x in leaves(some)[:-1]}
    views[id(some.state)] = some.state.mT.contiguous().mT
    given = {name: (x.clone(), x.stride()) for name, x in views.items()}
    results = []
    for prepare in (lambda x: x, torch.Tensor.contiguous):
        own = {i: prepare(x).detach().requires_grad_() for i, x in views.items()}
        output, state = lv.recur(
            some.a.map(lambda x, own=own: own[id(x)]), *(own[id(x)] for x in some[1:]), form=form, backend=backend
        )
        total = LOSSES[loss](output) + LOSSES[loss](state.mT)
        results.append([output, state, *torch.autograd.grad(total, list(own.values()))])
    assert all(difference(one, other) < 1e-13 for one, other in zip(*results, strict=True))
    assert all(torch.equal(x, given[i][0]) and x.stride() == given[i][1] for i, x in views.items())


@EVERY_WAY
def test_what_was_expanded_receives_the_sum_of_the_gradients(form, backend, device):
    k = torch.randn(1, T, 1, K, dtype=torch.float64, device=device, requires_grad=True)
    v = torch.randn(B, T, H, K, dtype=torch.float64, device=device)
    spread = k.expand(B, T, H, K)
    copy = spread.detach().clone().requires_grad_()
    for key in (spread, copy):
        lv.recur(
            lv.householder(key, torch.full((B, T, H), 0.3).to(v)), key, key, v, form=form, backend=backend
        ).output.sum().backward()
    assert difference(k.grad, copy.grad.sum((0, 2), keepdim=True)) < 1e-13


def numbers(*shape, device, complex=False):
    return torch.randn(*shape, dtype=torch.complex128 if complex else torch.float64, device=device)


def turned(x):
    """`x` as a view whose axes lie the other way around, complex numbers conjugated by a mark and not in memory."""
    there = x.mT.contiguous().mT if x.ndim > 1 else x.repeat_interleave(2)[::2]
    return there.conj_physical().conj() if x.is_complex() else there


def spread(x):
    """The first entries along the leading axis, for all of it."""
    return x[:1].expand_as(x)


def systems(A, B, C, u, state):
    system = lv.lti.System(A, B, C, step=0.1)
    return torch.cat([system.convolve(u, state).flatten(), *(x.flatten() for x in system.recur(u, state))])


LINEAR = {
    "fft": (lambda u, K: convolve(u, K, method="fft"), [((3, 5, 8), False), ((5, 8), False)]),
    "fft, complex": (lambda u, K: convolve(u, K, method="fft"), [((3, 5, 8), True), ((5, 8), False)]),
    "direct": (lambda u, K: convolve(u, K, method="direct"), [((3, 5, 8), True), ((5, 8), True)]),
    "diagonal kernel": (lambda w, a: lv.lti.diagonal_kernel(w, a, 6), [((3, 4), True), ((3, 4), True)]),
    "s4 kernel": (
        lambda a, P, B, C: lv.lti.s4_kernel(a, P.unsqueeze(1), B, C, 0.1, 6, conjugates=True),
        [((3, 4), True)] * 4,
    ),
    "system": (systems, [((4, 4), False), ((4, 2), False), ((3, 4), False), ((2, 6, 2), False), ((2, 4), False)]),
    "diagonal system": (systems, [((4,), True), ((4, 2), True), ((3, 4), True), ((2, 6, 2), False), ((2, 4), True)]),
}


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("view", [turned, spread])
@pytest.mark.parametrize("loss", LOSSES)
def test_filters_and_linear_systems_take_any_view(name, view, loss, device):
    function, shapes = LINEAR[name]
    views = [view(0.5 * numbers(*shape, device=device, complex=complex)) for shape, complex in shapes]
    results = []
    for prepare in (lambda x: x, lambda x: x.resolve_conj().contiguous()):
        own = [prepare(x).detach().requires_grad_() for x in views]
        y = function(*own)
        results.append([y, *torch.autograd.grad(LOSSES[loss](y), own)])
    assert all(difference(one, other) < 1e-13 for one, other in zip(*results, strict=True))
