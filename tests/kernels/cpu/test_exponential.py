"""The kernel's own exponential: what survives of a 1 after one step is exp(log_decay), wherever it lies."""

import pytest
import torch

import lavagna as lv
from lavagna.kernels.cpu.library import library

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)


@pytest.mark.parametrize(("dtype", "least", "most"), [(torch.float32, -87, 88), (torch.float64, -708, 709)])
def test_it_is_relatively_off_by_less_than_two_epsilons(dtype, least, most):
    log_decay = torch.cat([torch.linspace(least, most, 20001), torch.linspace(-0.6, 0.6, 20001)]).to(dtype)
    one = torch.ones(1, 1, len(log_decay), 1, dtype=dtype)
    a = lv.diagonal(log_decay.view_as(one))
    state = lv.recur(a, one, one, 0 * one, one.view(1, -1, 1, 1), backend="cpu").state.flatten()
    right = log_decay.double().exp()
    assert ((state.double() - right).abs() / right).max() < 2 * torch.finfo(dtype).eps


def test_beyond_the_range_it_is_nothing_infinite_or_no_number():
    log_decay = torch.tensor([-torch.inf, -1e30, -110.0, 100.0, torch.inf, torch.nan])
    one = torch.ones(1, 1, len(log_decay), 1)
    state = lv.recur(lv.diagonal(log_decay.view_as(one)), one, one, 0 * one, one.view(1, -1, 1, 1), backend="cpu").state
    wanted = torch.tensor([0, 0, 0, torch.inf, torch.inf, torch.nan])
    assert torch.equal(state.flatten().nan_to_num(7, 8), wanted.nan_to_num(7, 8))
