"""Every operator over steps is what its definition says, and takes a gradient that did not arrive for zeros."""

from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.kernels.cpu import gated_norm, narrow, operators, response, selective, short_conv, slstm, wkv
from lavagna.kernels.cpu.library import library
from lavagna.modules.exponential import NOTHING

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

STEPS = 65


class Operator(NamedTuple):
    """An operator, the tensors of a call of it (1, t, ...), what follows mask and borders, and what it returns."""

    function: Any
    tensors: tuple[Tensor | None, ...]
    options: tuple[bool, ...] = ()
    keeps: bool = True
    results: int = 2

    def given(self, mask: Tensor | None, borders: Tensor | None, *, keep: bool) -> tuple:
        """Its arguments, tensors with gradients where these are kept."""
        tensors = (None if x is None else x.detach().requires_grad_(keep) for x in self.tensors)
        return (*tensors, mask, borders, *self.options, *([keep] if self.keeps else []))


def drawn(*shape: int, dtype=torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype)


def unit(*shape: int) -> Tensor:
    return F.normalize(drawn(*shape), dim=-1)


def recurrences() -> dict[str, Operator]:
    q, k, v, state = drawn(1, STEPS, 2, 5), unit(1, STEPS, 2, 5), drawn(1, STEPS, 4, 3), drawn(1, 4, 3, 5)
    decay, beta = -drawn(1, STEPS, 4, 1).abs(), drawn(1, STEPS, 4, 1).sigmoid()
    stepped, turning = -drawn(1, 1, 2, 5).abs(), torch.complex(-drawn(1, STEPS, 2, 5).abs(), drawn(1, STEPS, 2, 5))
    step, left = drawn(1, STEPS, 1, 1).abs(), -0.5 * k
    few, many, memories = drawn(1, STEPS, 1, 1), drawn(1, STEPS, 40, 1), drawn(1, 40, 1, 1)
    fade, turns = many.sigmoid(), torch.complex(-drawn(1, STEPS, 40, 1).abs(), drawn(1, STEPS, 40, 1))
    whole, apart = operators.FORWARD, narrow.FORWARD
    return {
        "gated householder": Operator(whole, (q, k, v, decay, None, beta, None, state), (True, False)),
        "dplr, before": Operator(whole, (q, k, v, decay, None, left, k.clone(), state), (False, True)),
        "diagonal with step": Operator(whole, (q, k, v, stepped, step, None, None, state), (False, False)),
        "complex": Operator(whole, (q, k, v, turning, None, None, None, state + 0j), (False, False)),
        "narrow": Operator(apart, (few, few.clone(), many, -many.abs(), step, None, memories), (False,)),
        "narrow, erased": Operator(apart, (few, unit(1, STEPS, 1, 1), many, None, None, fade, memories), (False,)),
        "narrow, complex, before": Operator(apart, (few, few.clone(), many, turns, None, None, memories + 0j), (True,)),
    }


def others() -> dict[str, Operator]:
    x, dt, A, B, C = drawn(1, STEPS, 5), drawn(1, STEPS, 5).abs(), -drawn(5, 4).abs(), *drawn(2, 1, STEPS, 4)
    u, sums, stabilizer = drawn(5), drawn(1, 5, 2, 1).abs(), drawn(1, 5, 1)
    gates, cells = drawn(4, 1, STEPS, 2, 6), drawn(4, 1, 2, 6).abs()
    mixing = drawn(2, 24, 6) * 6**-0.5
    fresh = (*torch.zeros(3, 1, 2, 6, dtype=torch.float64), torch.full((1, 2, 6), NOTHING, dtype=torch.float64))
    scan, filters = selective._FORWARD, (drawn(1, STEPS, 6), drawn(6, 4), drawn(6), drawn(1, 3, 6))
    x6, taps, bias, window = filters
    fading = torch.polar(drawn(5, 3).sigmoid(), drawn(5, 3))
    system = (fading, *drawn(2, 5, 3, dtype=torch.complex128), drawn(1, 5, 3, dtype=torch.complex128))
    return {
        "response": Operator(response._FORWARD, (x, *system)),
        "response, real": Operator(response._FORWARD, (x, *(part.real.clone() for part in system))),
        "selective scan": Operator(scan, (x, dt, A, B, C, u, drawn(1, 5, 1, 4))),
        "selective scan without skip": Operator(scan, (x, dt, A, B, C, None, drawn(1, 5, 1, 4))),
        "wkv": Operator(wkv._FORWARD, (-drawn(5).abs(), u, x, dt, sums, stabilizer), results=3),
        "slstm": Operator(slstm._FORWARD, (*gates, drawn(4, 2, 6), mixing, *cells), results=5),
        "slstm from nothing": Operator(slstm._FORWARD, (*gates, drawn(4, 2, 6), mixing, *fresh), results=5),
        "short conv": Operator(short_conv._FORWARD, (x6, taps, bias, window), (True,), False),
        "short conv alone": Operator(short_conv._FORWARD, (x6, taps, None, window), (False,), False),
    }


EVERY = recurrences() | others()
# What calls them.
DIRECT = {operators.FORWARD: operators.RUN, narrow.FORWARD: narrow.RUN} | {
    module._FORWARD: module._RUN for module in (response, selective, short_conv, slstm, wkv)
}
ALL = pytest.mark.parametrize("name", EVERY)
MASK = torch.arange(STEPS)[None] % 3 > 0
BORDERS = torch.tensor([0, STEPS])


@ALL
@pytest.mark.parametrize("keep", [False, True])
def test_it_is_what_it_says(name, keep):
    # A mask and borders in turn.
    for mask, borders in ((None, None), (MASK, BORDERS)) if keep else ((MASK, None), (None, BORDERS)):
        torch.library.opcheck(EVERY[name].function, EVERY[name].given(mask, borders, keep=keep))


def test_so_are_gated_norms():
    x, gate, weight = torch.randn(3, 5, 6)
    for parts, width, gated in (((x, None, None), 6, 0), ((x, gate, weight[0]), 6, 1), ((x, gate, weight[0]), 3, 2)):
        given = [None if part is None else part.clone().requires_grad_() for part in parts]
        torch.library.opcheck(gated_norm._FORWARD, (*given, 1e-5, width, gated))


@ALL
@pytest.mark.parametrize("again", [False, True], ids=["", "with gradients of their own"])
def test_of_a_loss_on_one_result_the_others_have_no_part(name, again):
    for mask in (None, MASK):
        given = EVERY[name].given(mask, None, keep=True)
        leaves = [x for x in given if isinstance(x, Tensor) and x.requires_grad]
        results = EVERY[name].function(*given)[: EVERY[name].results]
        weights = [torch.randn_like(x) for x in results]
        for alone, result in enumerate(results):
            beside = [w if n == alone else torch.zeros_like(w) for n, w in enumerate(weights)]
            found = gradients([result], leaves, [weights[alone]], again)
            assert all(map(torch.equal, found, gradients(results, leaves, beside, again)))


def test_where_no_gradient_arrives_none_is_computed():
    x, weight = torch.randn(2, 3, 6).requires_grad_(), torch.randn(6).requires_grad_()
    given = EVERY["wkv"].given(None, None, keep=True)
    for results, leaves in (
        ([gated_norm._FORWARD(x, None, weight, 1e-5, 6, 0)], [x, weight]),
        (EVERY["wkv"].function(*given)[:3], [x for x in given if isinstance(x, Tensor)]),
    ):
        undefined = [torch._C._functions.UndefinedGrad()(result).sum() for result in results]
        assert torch.autograd.grad(sum(undefined), leaves, allow_unused=True) == (None,) * len(leaves)


def gradients(results, leaves, incoming, again: bool):
    options = {"allow_unused": True, "materialize_grads": True}
    return torch.autograd.grad(results, leaves, incoming, retain_graph=True, create_graph=again, **options)


@ALL
def test_past_the_dispatcher_it_is_the_same_and_who_looks_on_sees_it(name):
    function, tensors, options, keeps, results = EVERY[name]
    run = DIRECT[function]
    for mask, borders in product((None, MASK), (None, BORDERS)):
        given = (*tensors, mask, borders, *options, *([False] if keeps else []))
        assert all(map(torch.equal, run(*given)[:results], function(*given)[:results]))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(*given)
    assert function.name() in {event.name for event in profile.events()}


@ALL
def test_a_tensor_on_another_device_is_refused(name):
    function, tensors, options, keeps, _ = EVERY[name]
    rest = (None, *options, *([False] if keeps else []))
    there = [i for i, x in enumerate(tensors) if x is not None]
    moved = [tuple(x.to("meta") if i == at else x for i, x in enumerate(tensors)) for at in there]
    for given in (*((*tensors, None, *rest) for tensors in moved), (*tensors, MASK.to("meta"), *rest)):
        for call in (DIRECT[function], function):
            with pytest.raises(ValueError, match=r"is on meta\. Move all to one device\."):
                call(*given)
