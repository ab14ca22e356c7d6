"""Softmax attention against its sum written out, and its growing state."""

import math

import pytest
import torch

from lavagna import layers
from sample_layers import VARIANTS, D, build, distance, rms, text, turned


def rotated(z, position, layer):
    """Vectors (h, size) whose first `layer.turned` channels turn as complex numbers (j, j + turned / 2)."""
    count = layer.turned
    order = torch.arange(count).reshape(2, -1).T.flatten()
    back = order.argsort()
    first = turned(z[:, :count][:, order], position, [2 * j / count for j in range(count // 2)])[:, back]
    return torch.cat([first, z[:, count:]], -1) if count else z


def normed(z, norm, whole):
    """Queries or keys (h, size) of one token, over each head or over all of them."""
    if norm is None:
        return z
    factor = norm.weight + (1 if norm.zero_centered else 0)
    return (rms(z.flatten(), norm.eps) * factor).reshape(z.shape) if whole else rms(z, norm.eps) * factor


def written_out(layer, x):
    """One sequence (t, d): every read as a weighted mean of the values within the window."""
    (heads, size), kv_heads = layer.heads, layer.keys.count
    bias = 0 if layer.qkv.bias is None else layer.qkv.bias
    q, k, v = (x @ layer.qkv.weight.T + bias).reshape(len(x), -1, size).split([heads, kv_heads, kv_heads], 1)
    whole = layer.qk_norm == "width"
    q = torch.stack([rotated(normed(z, layer.q_norm, whole), t, layer) for t, z in enumerate(q)])
    k = torch.stack([rotated(normed(z, layer.k_norm, whole), t, layer) for t, z in enumerate(k)])
    reads = torch.zeros_like(q)
    for t in range(len(x)):
        first = 0 if layer.window is None else max(0, t - layer.window + 1)
        for h in range(heads):
            g = h // (heads // kv_heads)
            weights = torch.exp(k[first : t + 1, g] @ q[t, h] / math.sqrt(size))
            reads[t, h] = weights @ v[first : t + 1, g] / weights.sum()
    reads = reads.reshape(len(x), -1)
    if layer.gate is not None:
        reads = reads / (1 + torch.exp(-(x @ layer.gate.weight.T + layer.gate.bias)))
    return reads @ layer.out.weight.T + (0 if layer.out.bias is None else layer.out.bias)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name.startswith("softmax_attention")])
@pytest.mark.parametrize("form", ["recurrent", "parallel"])
def test_it_is_its_sum(device, variant, form):
    layer, x = build(variant, device), text(device, 2, 9)
    right = torch.stack([written_out(layer, row) for row in x])
    assert distance(layer(x, form=form).y, right) < 1e-12


@pytest.mark.parametrize("form", ["recurrent", "parallel"])
def test_with_a_window_its_state_holds_no_more_than_that(device, form):
    layer, x = build("softmax_attention windowed", device), text(device, 1, 30)
    sizes, state = [], None
    for step in x.split(1, 1):
        state = layer(step, state, form=form).state
        sizes.append(state.keys.shape[1])
    assert sizes == [1, 2, 3] + 27 * [3]
    _, whole = layer(x, form=form)
    assert distance(state.keys, whole.keys) < 1e-12 and distance(state.values, whole.values) < 1e-12
    assert state.tokens_seen.tolist() == [30]


def test_a_window_of_one_token_remembers_nothing(device):
    layer, x = layers.build("softmax_attention", D, window=1).to(device).double(), text(device, 2, 5)
    y, state = layer(x)
    assert state.keys.shape[1] == 0
    assert distance(layer(x[:, 4:], state).y, y[:, 4:]) < 1e-12
    assert distance(y[:, 4:], layer(x[:, 4:]).y) < 1e-12


def test_a_window_longer_than_the_text_changes_nothing(device):
    plain = build("softmax_attention heads", device)
    windowed = layers.build("softmax_attention", D, heads=2, window=9).to(device).double()
    windowed.load_state_dict(plain.state_dict())
    x = text(device, 2, 9)
    assert torch.equal(windowed(x).y, plain(x).y)
    assert distance(windowed(x, plain(x).state).y[:, :1], plain(x, plain(x).state).y[:, :1]) > 1e-6


def test_without_rotation_the_order_of_the_past_is_not_told(device):
    layer, x = layers.build("softmax_attention", D, rotary_fraction=0).to(device).double(), text(device, 1, 6)
    assert distance(layer(x.flip(1)[:, 1:]).y[:, -1:], layer(x.flip(1)[:, [3, 1, 4, 2, 5]]).y[:, -1:]) < 1e-12


def test_its_state_grows_by_one_entry_a_token(device):
    layer = layers.build("softmax_attention", D).to(device)
    sizes, state = [], None
    for _ in range(4):
        state = layer(text(device, 1, 1, torch.float32), state).state
        sizes.append(state.keys.numel() + state.values.numel())
    assert sizes == [2 * D, 4 * D, 6 * D, 8 * D]


def test_rows_of_unlike_length_are_kept_without_holes(device):
    layer, x = build("softmax_attention", device), text(device, 2, 6)
    mask = torch.tensor([[0, 1, 0, 1, 0, 0], [1, 1, 0, 1, 1, 0]], device=device)
    state = layer(x, mask=mask).state
    assert state.keys.shape[1] == 4
    assert not state.keys[0, 2:].any() and state.keys[0, :2].any(-1).all()


def test_a_form_it_lacks_is_refused(device):
    with pytest.raises(ValueError, match="softmax_attention: form must be one of recurrent, parallel or auto"):
        build("softmax_attention", device)(text(device, 1, 2), form="chunkwise")


def test_an_odd_head_is_refused():
    with pytest.raises(ValueError, match="head_dim must be even.*Use head_dim=4 with heads=2"):
        layers.build("softmax_attention", D, heads=2, head_dim=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4, "kv_heads": 3}, "kv_heads=3 does not divide heads = 4. Use kv_heads="),
        ({"heads": 2, "rotary_fraction": 0.2}, "no even number of channels.*Use rotary_fraction=0.25"),
        ({"qk_norm": "layer"}, "qk_norm must be one of head, zero_centered_head, width, but came as 'layer'"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=f"softmax_attention: .*{message}"):
        layers.build("softmax_attention", D, **options)
