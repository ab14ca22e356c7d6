"""Gradients that are to have gradients themselves are the same numbers, whatever hangs on whatever."""

import pytest
import torch

import lavagna as lv
from lavagna.kernels.cpu.library import library
from lavagna.layers import registry

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)


def both(y: torch.Tensor, leaves: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    loss = y.square().sum()
    plain = torch.autograd.grad(loss, leaves, retain_graph=True, allow_unused=True, materialize_grads=True)
    again = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True, materialize_grads=True)
    return list(zip(plain, again, strict=True))


@pytest.mark.parametrize("key", [lambda q: q, torch.tanh], ids=["the query itself", "made of the query"])
@pytest.mark.parametrize("heads", [1, 9])
def test_a_key_that_hangs_on_the_query(key, heads):
    q = torch.randn(1, 5, heads, 4, dtype=torch.float64, requires_grad=True)
    v = torch.randn(1, 5, heads, 4, dtype=torch.float64)
    ((plain, again),) = both(lv.recur(lv.identity(), q, key(q), v).output, [q])
    assert torch.allclose(plain, again, atol=1e-12)


@pytest.mark.parametrize("name", registry.names())
def test_every_layer(name):
    layer = lv.layers.build(name, 64).double()
    x = torch.randn(2, 9, 64, dtype=torch.float64, requires_grad=True)
    leaves = [x, *(each for each in layer.parameters() if each.requires_grad)]
    for plain, again in both(layer(x).y, leaves):
        assert (plain - again).abs().max() <= 1e-9 * (1 + plain.abs().max())
