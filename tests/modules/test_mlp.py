"""The gated feed-forward nets."""

import pytest
import torch

from lavagna.modules import feed_forward
from lavagna.modules.steps import Steps

ACTIVATIONS = {
    "swiglu": lambda x: x * torch.sigmoid(x),
    "geglu": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2,
    "reglu": lambda x: x.clamp_min(0),
    "geglu_tanh": lambda x: x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2,
}


def test_with_biases_each_map_has_one(device):
    mlp, plain = (feed_forward.build(name, 16, 40) for name in ("geglu_tanh_bias", "geglu_tanh"))
    mlp.reset_parameters()
    plain.load_state_dict({name: x for name, x in mlp.state_dict().items() if name.endswith("weight")})
    x = torch.randn(1, 3, 16, device=device)
    steps = Steps("test", x)
    assert torch.equal(mlp.to(device)(x, {}, steps)[0], plain.to(device)(x, {}, steps)[0])
    with torch.no_grad():
        mlp.down.bias += 1
        mlp.gate_up.bias[:40] = -100
    assert torch.allclose(mlp(x, {}, steps)[0], torch.ones_like(x), atol=1e-6)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_one_half_is_gated_by_the_activation_of_the_other(name, device):
    mlp = feed_forward.build(name, 16, 40)
    mlp.reset_parameters()
    mlp.to(device, torch.float64)
    x = torch.randn(1, 3, 16, device=device, dtype=torch.float64)
    gate, up = x @ mlp.gate_up.weight[:40].T, x @ mlp.gate_up.weight[40:].T
    y, tensors = mlp(x, {}, Steps("test", x))
    assert torch.allclose(y, (ACTIVATIONS[name](gate) * up) @ mlp.down.weight.T, rtol=1e-12) and not tensors
