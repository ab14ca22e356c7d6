"""The gated feed-forward net."""

import torch

from lavagna.modules.mlp import SwiGLU


def test_it_gates_one_half_by_the_silu_of_the_other(device):
    mlp = SwiGLU(16)
    mlp.reset_parameters()
    mlp.to(device, torch.float64)
    x = torch.randn(3, 16, device=device, dtype=torch.float64)
    gate, up = x @ mlp.gate_up.weight[: mlp.hidden].T, x @ mlp.gate_up.weight[mlp.hidden :].T
    assert torch.allclose(mlp(x), (gate * torch.sigmoid(gate) * up) @ mlp.down.weight.T, rtol=1e-12)


def test_its_hidden_width_is_eight_thirds_rounded_up_to_a_multiple_of_16():
    assert [SwiGLU(d).hidden for d in (48, 64, 96, 768)] == [128, 176, 256, 2048]
    assert SwiGLU(48, hidden=50).hidden == 50
