"""A prepared call is the operator's own, made again with whatever numbers its tensors then hold."""

import pytest
import torch

from lavagna.kernels.cpu import linear_few, operators, selective, slstm, wkv
from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.prepared import prepared

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

aten = torch.ops.aten
drawn = torch.randn


def of_recurrence():
    q, k, v = (drawn(1, 1, 2, n) for n in (4, 4, 6))
    log_decay, beta, state = -drawn(1, 1, 2, 4).abs(), drawn(1, 1, 2, 1), drawn(1, 2, 6, 4)
    return q, k, v, log_decay, None, beta, None, state, None, None, True, False, False


def of_selective():
    x, dt, B, C = drawn(1, 1, 5), drawn(1, 1, 5).abs(), drawn(1, 1, 4), drawn(1, 1, 4)
    return x, dt, -drawn(5, 4).abs(), B, C, drawn(5), drawn(1, 5, 1, 4), None, None, False


def of_slstm():
    gates, bias, mixing = [drawn(1, 1, 2, 6) for _ in range(4)], drawn(4, 2, 6), drawn(2, 24, 6)
    state = [x.abs() for x in (drawn(4, 1, 2, 6)).clone().unbind(0)]
    return *gates, bias, mixing, *state, None, None, False


def of_wkv():
    log_decay, u, k, v, sums, unit = (
        drawn(5),
        drawn(5),
        drawn(1, 1, 5),
        drawn(1, 1, 5),
        drawn(1, 5, 2, 1),
        drawn(1, 5, 1),
    )
    return -log_decay.abs(), u, k, v, sums.abs(), unit, None, None, False


CALLS = {
    aten.linear.default: lambda: (drawn(2, 1, 9), drawn(7, 9), drawn(7)),
    aten.mm.default: lambda: (drawn(3, 9), drawn(7, 9).T),
    aten.addmm.default: lambda: (drawn(7), drawn(1, 9), drawn(7, 9).T),
    operators.FORWARD: of_recurrence,
    selective._FORWARD: of_selective,
    slstm._FORWARD: of_slstm,
    wkv._FORWARD: of_wkv,
}


@pytest.mark.parametrize("operator", CALLS, ids=str)
def test_a_prepared_call_is_the_operators_own_on_new_numbers(operator):
    given = CALLS[operator]()
    results = operator(*given)
    made = tuple(x.fill_(torch.nan) for x in ((results,) if isinstance(results, torch.Tensor) else results))
    call = prepared(operator, given, {}, made)
    assert call is not None
    for _ in range(2):
        given[0].mul_(0.7)
        call()
        right = operator(*given)
        for ours, theirs in zip(made, (right,) if isinstance(right, torch.Tensor) else right, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_what_needs_more_than_the_kernel_is_not_prepared():
    x, weight, bias = drawn(1, 9), drawn(7, 9), drawn(7)
    out = torch.empty(1, 7)
    assert prepared(aten.linear.default, (x, weight.double()), {}, (out,)) is None
    assert prepared(aten.linear.default, (drawn(linear_few.FEW + 1, 9), weight), {}, (out,)) is None
    assert prepared(aten.addmm.default, (bias, x, weight.T), {"beta": 2}, (out,)) is None
    assert prepared(aten.erfinv.default, (x,), {}, (torch.empty_like(x),)) is None
    *given, _ = of_recurrence()
    assert prepared(operators.FORWARD, (*given, True), {}, operators.FORWARD(*given, True)) is None


@pytest.mark.parametrize("values", [1, 6, 37])
@pytest.mark.parametrize("keys", [4, 16, 64])
def test_a_step_of_the_recurrence_may_write_its_state_where_it_was(keys, values):
    q, k = drawn(2, 1, 1, 2, keys)
    v, state = drawn(1, 1, 2, values), drawn(1, 2, values, keys)
    given = (q, k, v, -drawn(1, 1, 2, 1).abs(), None, drawn(1, 1, 2, 1), None, state, None, None, True, False, False)
    output, last, *rest = operators.FORWARD(*given)
    made = (torch.empty_like(output), state, *rest)
    call = prepared(operators.FORWARD, given, {}, made)
    assert call is not None
    call()
    assert torch.equal(state, last) and torch.equal(made[0], output)
