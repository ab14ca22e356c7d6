"""A norm without an epsilon: what is zero, as masked steps are, is divided by nothing."""

import pytest
import torch

from lavagna import layers


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", ["rwkv7", "retention", "kda", "mlstm", "mamba2"])
def test_without_an_eps_masked_steps_have_no_gradient_and_leave_none_undefined(name, dtype, device):
    layer = layers.build(name, 16, norm_eps=0).to(device, dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    x, mask = torch.randn(1, 6, 16, device=device, dtype=dtype), torch.tensor([[0, 1, 1, 0, 1, 0]])
    gradients = []
    for given, kept in ((x, mask.to(device)), (x[:, mask[0] == 1], None)):
        layer.zero_grad()
        layer(given, mask=kept).y.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in layer.parameters()])
    assert all(torch.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in zip(*gradients, strict=True))
