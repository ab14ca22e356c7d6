"""The logarithm of a step's decay fits what `discretize` makes, and keeps its digits and gradients at the ends."""

import pytest
import torch

from lavagna.lti import discretize, log_decay

METHODS = ("zoh", "bilinear", "euler", "backward_euler", "mamba")
Z = [-1e-9, -0.5, -1.5, -7.0, -0.5 + 2j, -3 - 4j, 1e-3j]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("z", Z)
def test_its_exponential_is_the_decay(method, z, device):
    A = torch.tensor([z], device=device, dtype=torch.complex128 if isinstance(z, complex) else torch.float64)
    decay = discretize(A, torch.ones_like(A), 1.0, method).A
    ours = log_decay(A, method).exp()
    assert torch.allclose(ours, decay.to(ours), rtol=1e-14, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_a_tiny_step_is_not_rounded(method, device):
    z = torch.tensor([1e-20 * (-0.5 + 3j)], dtype=torch.complex128, device=device)
    assert torch.allclose(log_decay(z, method), z, rtol=1e-14, atol=0)


@pytest.mark.parametrize(("method", "z"), [("bilinear", -2.0), ("euler", -1.0), ("euler", -1 + 0j), ("zoh", 0.0)])
def test_where_nothing_survives_gradients_are_finite(method, z, device):
    z = torch.tensor([z], device=device).requires_grad_()
    log = log_decay(z, method)
    (grad,) = torch.autograd.grad(log.exp().real.sum(), z)
    assert torch.isfinite(torch.view_as_real(log) if log.is_complex() else log).all()
    assert torch.isfinite(torch.view_as_real(grad) if grad.is_complex() else grad).all()
