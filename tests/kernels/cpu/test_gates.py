"""What gates are squashed by in the kernels, seen in one step of an sLSTM: c = tanh(z), h = s(o) tanh(z)."""

import pytest
import torch

from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.slstm import slstm

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


def step(i, f, z, o):
    """One step of as many heads of one cell as there are numbers, from a cell and a normalizer of 0 and 1 over e^0."""
    numbers = torch.broadcast_tensors(*(torch.as_tensor(x, dtype=z.dtype) for x in (i, f, z, o)))
    gates = [x.reshape(1, 1, -1, 1) for x in numbers]
    zero = torch.zeros_like(gates[0][0])
    heads = zero.shape[1]
    state = zero, zero, zero + 1, zero
    out = slstm(*gates, zero.new_zeros(4, heads, 1), zero.new_zeros(heads, 4, 1), *state)
    return [x.flatten() for x in out]


def numbers(dtype, most):
    near = 10 ** torch.linspace(-30, 0, 3001, dtype=torch.float64)
    return torch.cat([torch.linspace(-most, most, 20001), near, -near]).to(dtype)


def off(ours, right):
    return ((ours.double() - right) / right).abs().nan_to_num(0).max() / torch.finfo(ours.dtype).eps


@DTYPES
def test_tanh_is_relatively_off_by_less_than_four_epsilons(dtype):
    z = numbers(dtype, 30)
    # The forget gate shut and the input gate open: the cell is what comes.
    _, _, cell, normalizer, _ = step(0, -torch.inf, z, 0)
    assert (normalizer == 1).all() and off(cell, z.double().tanh()) < 4
    extremes = torch.tensor([torch.inf, -torch.inf, 1e30, torch.nan], dtype=dtype)
    assert torch.equal(step(0, -torch.inf, extremes, 0)[2].nan_to_num(7), torch.tensor([1.0, -1, 1, 7], dtype=dtype))


@DTYPES
def test_the_logistic_function_is_relatively_off_by_less_than_four_epsilons(dtype):
    o = numbers(dtype, 80)
    one = torch.full_like(o, 50)
    assert off(step(0, -torch.inf, one, o)[0], o.double().sigmoid()) < 4
    extremes = torch.tensor([torch.inf, -torch.inf, 1e30, -1e30, torch.nan], dtype=dtype)
    shown = step(0, -torch.inf, torch.full_like(extremes, 50), extremes)[0]
    assert torch.equal(shown.nan_to_num(7), torch.tensor([1.0, 0, 1, 0, 7], dtype=dtype))


@DTYPES
def test_its_logarithm_is_relatively_off_by_less_than_four_epsilons(dtype):
    f = numbers(dtype, 80)
    # The input gate shut: the unit is e^0 times the forget gate.
    *_, unit = step(-1e30, f, torch.zeros_like(f), 0)
    right = torch.nn.functional.logsigmoid(f.double())
    # Of a float32 the logarithm in float64 is exact; that of a float64 is off by an epsilon itself.
    assert off(unit, right) < 4 + (dtype == torch.float64)
    extremes = torch.tensor([torch.inf, 1e30, -1e20], dtype=dtype)
    assert torch.equal(step(-1e30, extremes, torch.zeros_like(extremes), 0)[-1], extremes.clamp_max(0))
