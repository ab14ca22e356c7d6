"""Every operator over steps is what its definition says, and takes a gradient that did not arrive for zeros."""

from itertools import product

import pytest
import torch
from torch import Tensor

from kernel_calls import BORDERS, DIRECT, EVERY, MASK
from lavagna.kernels.cpu import gated_norm
from lavagna.kernels.cpu.library import library

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

ALL = pytest.mark.parametrize("name", EVERY)


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
