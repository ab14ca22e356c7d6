"""Memories that grow and are erased again: no more is lost on the way back than step by step."""

import pytest
import torch

import lavagna as lv
from lavagna.kernels.cpu.library import library
from transitions import difference

pytestmark = pytest.mark.skipif(library().functions is None, reason=library().level)


@pytest.mark.parametrize("growth", [0.05, 0.3, 2.0])
@pytest.mark.parametrize("angle", [0, 1j], ids=["real", "complex"])
@pytest.mark.parametrize("apart", [False, True], ids=["along the key", "along another"])
def test_what_grows_and_is_erased_has_gradients(apart, angle, growth):
    q, k, v = torch.randn(1, 70, 1, 9, dtype=torch.float64).split([1, 1, 7], -1)
    unit, beta = torch.ones_like(k), torch.ones(1, 70, 1, 1, dtype=torch.float64)
    log_decay = torch.full_like(k, growth) + (angle or 0.0)

    def found(dtype, backend):
        given = [x.to(dtype if x.is_floating_point() else dtype.to_complex()) for x in (q, k, v, log_decay)]
        own_q, own_k, own_v, decay = (x.requires_grad_() for x in given)
        along = unit.to(dtype) if apart else own_k / own_k.detach()
        a = lv.gated_householder(decay, along, beta.to(dtype))
        key = own_k if apart else along
        output, state = lv.recur(a, own_q, key, own_v, form="recurrent", backend=backend)
        return torch.autograd.grad((output.sum() + state.sum()).real, (own_q, own_v, own_k))

    right = found(torch.float64, "torch")
    for ours, theirs in zip(found(torch.float32, "cpu"), right, strict=True):
        assert difference(ours, theirs) < 1e-5
