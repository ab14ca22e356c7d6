"""H3 is its two systems and their products, head by head."""

import pytest
import torch

from lavagna import layers
from sample_layers import D, build, convolved, distance, text


def written_out(layer, u):
    """One sequence (t, d), memory by memory."""
    q, k, v = (u @ layer.qkv.weight.T).chunk(3, -1)
    k = convolved(k, layer.shift.weight) + layer.D_shift * k
    heads, size = layer.heads
    q, k, v = (part.reshape(len(u), heads, size) for part in (q, k, v))
    A = torch.complex(-layer.system.A_log.exp(), layer.system.A_imag)
    B, C = torch.view_as_complex(layer.system.B), torch.view_as_complex(layer.system.C[0])
    z = layer.system.log_step.exp()[:, None] * A
    decay, write = z.exp(), (z.exp() - 1) / A * B
    y = torch.zeros(len(u), heads, size, dtype=u.dtype, device=u.device)
    for h in range(heads):
        S = torch.zeros(size, size, len(A[h]), dtype=A.dtype, device=u.device)
        for t in range(len(u)):
            outer = torch.outer(k[t, h], v[t, h])
            S = S * decay[h] + outer[..., None] * write[h]
            y[t, h] = q[t, h] @ (2 * (S @ C[h]).real + layer.D[h] * outer)
    return y.flatten(1) @ layer.out.weight.T


@pytest.mark.parametrize("variant", ["h3", "h3 outer"])
def test_it_is_its_two_systems(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    with torch.no_grad():
        assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


def test_a_longer_filter_than_the_text_is_legal(device):
    layer, x = build("h3", device), text(device, 1, 100)
    assert layer.shift.width == 64
    for cut in (1, 63, 64, 65):
        y, state = layer(x[:, :cut])
        rest, last = layer(x[:, cut:], state)
        assert distance(torch.cat([y, rest], 1), layer(x).y) < 1e-12
        assert torch.allclose(last.window, layer(x).state.window)


def test_heads_of_one_channel_are_the_default():
    assert layers.build("h3", D).heads == (D, 1)
    assert layers.build("h3", D, heads=4).heads == (4, 8)
    assert layers.build("h3", D, head_dim=8).heads == (4, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_dim": 5}, "h3: head_dim=5 does not divide d_model = 32"),
        ({"conv_size": 0}, "h3: conv_size must be an int >= 1, but came as 0"),
        ({"d_state": 3}, "h3: d_state must be even"),
        ({"init": "fout"}, "h3: init must be one of"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("h3", D, **options)
