"""A call whose signature is known is the call that is worked out anew, whatever else has changed."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

import lavagna as lv
from kernel_calls import BORDERS, DIRECT, EVERY, MASK
from lavagna.kernels.cpu import gated_norm, linear_few, operands, operators, planned
from lavagna.kernels.cpu.library import library
from layouts import LAYOUTS, as_real, astray
from over_steps import by_threads

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

OTHERS = {
    "gated norm": (gated_norm._RUN, [torch.randn(3, 5, 6), torch.randn(3, 5, 6), torch.randn(6)], (1e-3, 6, 1)),
    "linear few": (linear_few._RUN, [torch.randn(2, 9), torch.randn(7, 9), torch.randn(7), None], ()),
}
NAMES = [*EVERY, *OTHERS]


def call_of(name, mask=None, borders=None):
    """An operator, a call's tensors, and what follows them."""
    if name in OTHERS:
        return OTHERS[name]
    function, tensors, options, keeps, _ = EVERY[name]
    return DIRECT[function], list(tensors), (mask, borders, *options, *([False] if keeps else []))


def anew(run, given):
    """What a call of which nothing is known returns, of copies in memory of their own."""
    run._plan.cache_clear()
    copies = (
        x.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format) if isinstance(x, Tensor) else x
        for x in given
    )
    return run(*copies)


def equal(one, other):
    pairs = zip(*((x,) if isinstance(x, Tensor) else x for x in (one, other)), strict=True)
    return all(x is y is None or torch.equal(x, y) for x, y in pairs)


def changed(x):
    return None if x is None else x * 0.5


@pytest.mark.parametrize("name", NAMES)
def test_other_numbers_are_read_where_they_lie(name):
    for mask, borders in ((None, None), (MASK, BORDERS)):
        run, tensors, rest = call_of(name, mask, borders)
        later = [changed(x) for x in tensors]
        # Twice the same tensor first, of which a block must not learn that they lie in one place.
        alike = {}
        once = [None if x is None else alike.setdefault((x.shape, x.dtype), x) for x in tensors]
        right = anew(run, (*later, *rest))
        run._plan.cache_clear()
        first = run(*once, *rest)
        kept = [None if x is None else x.clone() for x in ([first] if isinstance(first, Tensor) else first)]
        known = run._plan.cache_info().misses
        assert equal(run(*later, *rest), right)
        assert run._plan.cache_info().misses == known
        assert equal(first, kept[0] if isinstance(first, Tensor) else tuple(kept))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_so_are_tensors_that_lie_otherwise(name, layout):
    run, tensors, rest = call_of(name)
    run(*tensors, *rest)
    views = [None if x is None else layout(x) for x in tensors]
    found = [run(*views, *rest) for _ in range(2)]
    # Complex numbers that begin in the middle of a number are more than torch can copy.
    right = anew(run, (*(tensors if layout is astray else views), *rest))
    assert all(equal(each, right) for each in found)


def wide_call():
    """A call for which a second thread is worth it."""
    q, k, v = (torch.randn(1, 65, 4, 32) for _ in range(3))
    assert v.numel() * k.shape[3] >= operands.WORTH
    return q, k, v, None, None, None, None, torch.randn(1, 4, 32, 32), None, None, False, False, False


def test_how_many_threads_there_are_is_part_of_a_signature():
    run, given = operators.RUN, wide_call()
    run._plan.cache_clear()
    found = by_threads(lambda: (run(*given), run._found(given)[1].block.tolist()), (1, 3, 1, 2))
    results, plans = zip(*found, strict=True)
    assert plans[0] == plans[2] and plans[0] != plans[1] != plans[3]
    assert all(equal(results[0], each) for each in results)


def test_threads_that_call_at_once_do_not_see_each_others_tensors():
    calls = [(run, (*map(changed, tensors), *rest)) for run, tensors, rest in map(call_of, NAMES)]
    calls += [(operators.RUN, wide_call()) for _ in range(8)]
    right = [run(*given) for run, given in calls]
    for run, _ in calls:
        run._plan.cache_clear()

    def often(number):
        return all(equal(calls[i][0](*calls[i][1]), right[i]) for i in (number, number - 1) for _ in range(20))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(often, range(len(calls))))


@pytest.mark.parametrize("name", ["gated householder", "selective scan", "short conv", "gated norm"])
def test_what_is_traced_or_has_no_numbers_leaves_nothing_known(name):
    run, tensors, rest = call_of(name)
    right = run(*tensors, *rest)
    known = run._plan.cache_info().currsize
    with FakeTensorMode() as mode:
        fakes = [None if x is None else mode.from_tensor(x) for x in tensors]
        assert type(as_list(run(*fakes, *rest))[0]) is type(fakes[0])
    assert run._plan.cache_info().currsize == known
    compiled = torch.compile(lambda *tensors: run(*tensors, *rest), backend="aot_eager", fullgraph=True, dynamic=True)
    for scale in (1, 0.5):
        given = [None if x is None else x * scale for x in tensors]
        results = as_list(compiled(*given))
        assert all(x is None or torch.equal(x, y) for x, y in zip(as_list(run(*given, *rest)), results, strict=True))
    assert equal(run(*tensors, *rest), right)


def as_list(results):
    return [results] if isinstance(results, Tensor) else list(results)


@pytest.mark.parametrize("name", NAMES)
def test_results_lie_in_the_memory_of_a_cpu_whatever_the_default_device_is(name):
    run, tensors, rest = call_of(name)
    right = run(*tensors, *rest)
    with torch.device("meta"):
        found = run(*tensors, *rest)
    assert all(
        x is None or torch.equal(as_real(x), as_real(y)) for x, y in zip(as_list(right), as_list(found), strict=True)
    )


def test_only_so_many_signatures_are_kept():
    run = linear_few._RUN
    for size in range(planned.KEPT + 9):
        run(torch.ones(1, size), torch.ones(1, size))
    assert run._plan.cache_info().currsize == planned.KEPT


def test_borders_are_on_a_cpu_whatever_the_default_device_is():
    q, k, v = torch.randn(3, 1, 9, 2, 4)
    right = lv.recur(lv.identity(), q, k, v, cu_seqlens=[0, 3, 9], backend="cpu")
    with torch.device("meta"):
        ours = lv.recur(lv.identity(), q, k, v, cu_seqlens=[0, 3, 9], backend="cpu")
    assert torch.equal(ours.output, right.output) and torch.equal(ours.state, right.state)


def test_zeros_without_memory_are_zeros():
    q, k, v = torch.randn(3, 1, 9, 2, 4, requires_grad=True)
    none = torch._efficientzerotensor(1, 9, 2, 4)
    output, state = lv.recur(lv.identity(), q, k, none, backend="cpu")
    assert not output.any() and not state.any()
    output = lv.recur(lv.identity(), q, k, v, backend="cpu").output
    assert not any(x.any() for x in torch.autograd.grad(output, (q, k, v), none))


def test_many_gradients_at_once_are_those_one_by_one():
    q, k, v = torch.randn(3, 1, 9, 2, 4, dtype=torch.float64)

    def shown(q):
        return lv.recur(lv.identity(), q, k, v, backend="cpu").output.sum(-1).flatten()

    many, one = (torch.autograd.functional.jacobian(shown, q, vectorize=vectorize) for vectorize in (True, False))
    assert torch.allclose(many, one)
