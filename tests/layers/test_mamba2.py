"""Mamba-2 against its recurrence written out, its groups and its initial values."""

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, build, convolved, distance, rms, text


def written_out(layer, u):
    """The recurrence of one sequence (t, d), head by head, in the letters of the paper."""
    (heads, size), (groups, n) = layer.values, layer.keys
    parts = (layer.xbc, layer.step, layer.gate, layer.out, layer.conv)
    inner, step, gating, outer, bias = (0 if part.bias is None else part.bias for part in parts)
    mixed = F.silu(convolved(u @ layer.xbc.weight.T + inner, layer.conv.weight, bias))
    x, B, C = mixed.split([heads * size, groups * n, groups * n], -1)
    x, B, C = x.reshape(-1, heads, size), B.reshape(-1, groups, n), C.reshape(-1, groups, n)
    dt = torch.log1p(torch.exp(u @ layer.step.weight.T + step + layer.dt_bias)).clamp(*layer.dt_limit)
    y = torch.zeros_like(x)
    for h in range(heads):
        group = h // (heads // groups)
        S = torch.zeros(size, n, dtype=u.dtype, device=u.device)
        for t in range(len(u)):
            S = torch.exp(-dt[t, h] * layer.A_log[h].exp()) * S + dt[t, h] * torch.outer(x[t, h], B[t, group])
            y[t, h] = S @ C[t, group] + layer.D[h] * x[t, h]
    gate, after = F.silu(u @ layer.gate.weight.T + gating), layer.norm.norm_before_gate
    y = y.flatten(1) * (1 if after else gate)
    y = rms(y.reshape(len(u), groups, -1), layer.norm.eps).flatten(1) * layer.norm.weight * (gate if after else 1)
    return y @ layer.out.weight.T + outer


@pytest.mark.parametrize("variant", ["mamba2", "mamba2 grouped", "mamba2 per channel", "mamba2 biased"])
def test_it_is_its_recurrence(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("form", ["recurrent", "scan", "chunkwise", "parallel"])
def test_neighboring_heads_share_a_group(device, form):
    """Four heads, two groups, B 1 in the first and 10 in the second, all else 1: reads 1, 1, 10, 10."""
    layer = layers.build("mamba2", D, heads=4, head_dim=1, groups=2, d_state=1, conv_size=1).to(device).double()
    with torch.no_grad():
        layer.A_log.fill_(-torch.inf)
        layer.D.zero_()
        layer.step.weight.zero_()
        layer.dt_bias.fill_(torch.tensor(1.0).expm1().log())
        layer.conv.weight.zero_()
        # The inverse of SiLU at 1 and 10, to 1e-7.
        layer.conv.bias.fill_(1.2784645).view(-1)[5] = 10.0004539
    seen = {}
    layer.norm.register_forward_pre_hook(lambda module, given: seen.update(y=given[0]))
    layer(text(device, 1, 1), form=form)
    assert torch.allclose(seen["y"].flatten(), torch.tensor([1.0, 1, 10, 10], dtype=torch.float64, device=device))


def test_a_new_layer_has_the_decays_of_the_paper():
    layer = layers.build("mamba2", 1024)
    rates, steps = layer.A_log.exp(), F.softplus(layer.dt_bias)
    assert (rates > 0.999).all() and (rates < 16.001).all() and rates.max() - rates.min() > 8
    assert (steps > 0.999e-3).all() and (steps < 0.1001).all()
    assert (layer.D == 1).all() and not layer.conv.bias.any()


def test_a_deep_model_starts_with_smaller_outputs():
    torch.manual_seed(3)
    alone = layers.build("mamba2", D).out.weight
    torch.manual_seed(3)
    assert torch.allclose(layers.build("mamba2", D, depth=16).out.weight, alone / 4)


def test_step_sizes_stay_within_their_limits(device):
    layer = layers.build("mamba2", D, dt_limit=(0.5, 0.5), conv_size=1).to(device).double()
    faster = layers.build("mamba2", D, dt_limit=(0.5, 0.5), conv_size=1).to(device).double()
    faster.load_state_dict(layer.state_dict())
    with torch.no_grad():
        faster.dt_bias += 5
    x = text(device, 1, 6)
    assert torch.equal(layer(x).y, faster(x).y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4, "groups": 3}, "groups=3 does not divide heads = 4. Use groups="),
        ({"d_state": 0}, "d_state must be an int >= 1, but came as 0"),
        ({"dt_limit": (0.1, 0.01)}, r"dt_limit must be \(low, high\)"),
        ({"conv_size": 0}, "conv_size must be an int >= 1"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("mamba2", D, **options)
