"""The numbers behind the kernels at initialization."""

import pytest
import torch

from lavagna.plots import kernel


@pytest.mark.parametrize("start", kernel.STARTS)
@pytest.mark.parametrize("step", kernel.STEPS)
def test_a_kernel_is_what_the_recurrence_answers_to_one_impulse(start, step):
    system = kernel.system(start, step)
    impulse = torch.zeros(1, 40, dtype=torch.float64)
    impulse[0, 0] = 1
    y = system.recur(impulse).y[0]
    y = y.real if y.is_complex() else y
    shown = kernel.filters(start, step)
    assert shown.abs().max() == 1
    assert torch.allclose(shown[:40] * (y[0] / shown[0]), y, rtol=0, atol=1e-10 * y.abs().max().item())
