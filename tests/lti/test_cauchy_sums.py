"""Sums of poles against all terms written out."""

import pytest
import torch

from lavagna.lti import cauchy_sums as module
from lavagna.lti.cauchy_sums import cauchy_sums

pytestmark = pytest.mark.parametrize("conjugates", [False, True])


def drawn(device, *, k=7, m=2):
    """Weights, poles on the left, and nodes on the right."""
    V, a, b = (torch.randn(*shape, device=device, dtype=torch.complex128) for shape in ((3, 4, m), (k,), (k,)))
    z = torch.randn(3, 4, device=device, dtype=torch.complex128)
    return V, torch.complex(-z.real.abs(), z.imag), torch.complex(a.real.abs(), a.imag), b.real.abs() + 0j


def written_out(V, z, a, b, conjugates):
    terms = (V[..., None, :, :] / (a[:, None] - b[:, None] * z.unsqueeze(-2)).unsqueeze(-1)).sum(-2)
    return terms + written_out(V.conj(), z.conj(), a, b, False) if conjugates else terms


def test_they_are_the_sums_of_all_terms(device, conjugates):
    V, z, a, b = drawn(device)
    ours = cauchy_sums(V, z, a, b, conjugates=conjugates)
    assert torch.allclose(ours, written_out(V, z, a, b, conjugates), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("block", [1, 30, 2**17])
def test_gradients_are_those_of_all_terms_in_blocks_of_any_size(device, conjugates, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK", {device.type: block})
    V, z, a, b = drawn(device)
    weight = torch.randn(3, 7, 2, device=device, dtype=torch.complex128)
    found = []
    for sums in (lambda *x: cauchy_sums(*x, conjugates=conjugates), lambda *x: written_out(*x, conjugates)):
        given = [x.clone().requires_grad_() for x in (V, z)]
        out = sums(*given, a, b)
        found.append([out, *torch.autograd.grad((out * weight).real.sum(), given)])
    assert all(torch.allclose(ours, right, rtol=1e-11, atol=1e-12) for ours, right in zip(*found, strict=True))


def test_torch_func_has_their_gradients_too(device, conjugates):
    V, z, a, b = drawn(device)

    def loss(V, z):
        return cauchy_sums(V, z, a, b, conjugates=conjugates).abs().square().sum()

    right = torch.autograd.grad(loss(V.requires_grad_(), z.requires_grad_()), (V, z))
    ours = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)))(V.detach()[None], z.detach()[None])
    assert all(torch.allclose(one[0], other, rtol=1e-11) for one, other in zip(ours, right, strict=True))
