"""The CPU kernel of constant diagonal systems is the loop over steps, forward and backward, masked, packed or cut."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import lavagna as lv
from lavagna.kernels.cpu import response as kernel
from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.response import response
from lavagna.kernels.cpu.stepwise import stepwise
from over_steps import cut_is_whole, hidden, packed_is_apart, threads_change_no_bit
from transitions import difference

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)


class System(NamedTuple):
    """What the kernel takes."""

    u: Tensor
    a: Tensor
    b: Tensor
    c: Tensor
    state: Tensor


def drawn(b=2, t=70, c=19, k=5, *, rows=None, dtype=torch.complex128) -> System:
    """Decays from slow to sudden, with angles of any size."""
    rate = -(10 ** torch.empty(c, k, dtype=torch.float64).uniform_(-4, 1))
    a = torch.complex(rate, 3 * torch.randn_like(rate)).exp() if dtype.is_complex else rate.exp()
    B, C = (torch.randn(c, k, dtype=dtype) for _ in range(2))
    state = torch.randn(b if rows is None else rows, c, k, dtype=dtype)
    return System(torch.randn(b, t, c, dtype=torch.float64), a, B, C, state)


def loop(u, a, b, c, state, *, real=None, offsets=None):
    def step(given, state):
        after = a * state[0] + b * given[0].unsqueeze(-1)
        return (c * after).sum(-1).real, (after,)

    borders = None if offsets is None else torch.tensor(offsets)
    y, (last,) = stepwise(step, [u.double()], (state,), real, borders)
    return y.to(u.dtype), last


def gradients(run, some: System, **options):
    leaves = [x.detach().requires_grad_() for x in some]
    generator = torch.Generator().manual_seed(1)
    loss = 0.0
    for x in run(*leaves, **options):
        weight = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        loss = loss + ((x.real + 2 * x.imag if x.is_complex() else x) * weight).sum()
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


def same(some: System, tolerance=1e-12, **options):
    assert max(map(difference, response(*some, **options), loop(*some, **options))) < tolerance
    ours, right = (gradients(run, some, **options) for run in (response, loop))
    assert max(map(difference, ours, right)) < tolerance


SIZES = [{}, {"b": 1, "t": 1, "c": 1, "k": 1}, {"t": 65, "c": 32, "k": 4}, {"b": 1, "t": 128, "c": 33, "k": 1}]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_it_is_the_loop_over_steps_and_its_gradients_are(sizes, dtype):
    same(drawn(**sizes, dtype=dtype))


def test_masks_and_borders_in_any_place_change_nothing_of_the_rest():
    mask = torch.rand(1, 140) > 0.3
    mask[0, 20:90] = False
    for borders in (None, [0, 30, 40, 41, 140], [0, 3, 3, 76, 140]):
        some = drawn(b=1, t=140, rows=4 if borders else 1)
        same(some, offsets=borders)
        same(some, real=mask, offsets=borders)
        spoiled = some._replace(u=hidden(some.u, mask))
        options = {"real": mask, "offsets": borders}
        assert all(map(torch.equal, response(*spoiled, **options), response(*some, **options)))
        found = gradients(response, spoiled, **options)
        assert all(map(torch.equal, found, gradients(response, some, **options)))


def test_any_cut_is_the_whole_to_the_bit():
    some = drawn()
    assert all(cut_is_whole(part(some), [some.state], 70, cut) for cut in (0, 1, 63, 64, 70))


def part(some: System):
    """Calls of the kernel on some of the steps."""
    return lambda start, end, state: response(*some._replace(u=some.u[:, start:end], state=state))


def test_packed_rows_are_those_that_were_apart_to_the_bit():
    some = drawn(b=1, t=100, rows=3)
    whole = response(*some, offsets=[0, 10, 10, 100])
    assert packed_is_apart(whole, part(some), [some.state], [0, 10, 10, 100])


def test_the_number_of_threads_and_the_layout_change_no_bit():
    some = drawn(t=300, c=40)
    right = [*response(*some), *gradients(response, some)]
    assert threads_change_no_bit(lambda: [*response(*some), *gradients(response, some)])
    for turned in (lambda x: x.mT.contiguous().mT, lambda x: torch.stack([x, x * torch.nan], -1)[..., 0]):
        other = System(*map(turned, some))
        assert all(map(torch.equal, [*response(*other), *gradients(response, other)], right))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_inputs_are_summed_in_float64(dtype):
    some = drawn(t=200)
    some = some._replace(u=some.u.to(dtype))
    ours, right = response(*some), response(*some._replace(u=some.u.double()))
    assert ours[0].dtype == torch.float32 and torch.equal(ours[0], right[0].float()) and torch.equal(ours[1], right[1])
    ours, right = gradients(response, some), gradients(response, some._replace(u=some.u.double()))
    assert ours[0].dtype == dtype and difference(ours[0], right[0]) < 1e-2
    # The gradient that comes is rounded to float32.
    assert max(map(difference, ours[1:], right[1:])) < 1e-6


def test_nothing_is_legal_and_nothing_of_the_callers_is_changed():
    for sizes in ({"t": 0}, {"b": 0}):
        same(drawn(**sizes))
    some = drawn()
    before = [x.clone() for x in some]
    gradients(response, some)
    assert all(map(torch.equal, some, before))


@pytest.mark.parametrize("name", ["s4d", "dss", "h3"])
def test_layers_take_it_where_no_form_is_asked_for(name, monkeypatch):
    calls = []
    operator = kernel._FORWARD
    monkeypatch.setattr(kernel, "_RUN", lambda *given: calls.append(1) or operator(*given))
    layer, x = lv.layers.build(name, 32), torch.randn(2, 200, 32)
    exact, wide = layer(x, form="convolution"), lv.layers.build(name, 32).double()
    assert not calls
    wide.load_state_dict(layer.state_dict())
    right = wide(x.double(), form="recurrent", backend="torch")
    ours = layer(x)
    assert calls and difference(ours.y, right.y) <= max(2 * difference(exact.y, right.y), 1e-6)
    assert difference(ours.state.memory, right.state.memory) <= max(
        2 * difference(exact.state.memory, right.state.memory), 1e-6
    )
