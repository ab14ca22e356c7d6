"""Linear attention against its sum written out."""

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, build, distance, rms, text

MAPS = {"elu_plus_one": lambda x: F.elu(x) + 1, "relu": torch.relu, "identity": lambda x: x}


def written_out(layer, x, phi, normalize):
    """Every read as a sum over all earlier tokens, one sequence (t, d), without a memory."""
    t, heads, size = len(x), layer.heads, layer.head_dim
    q, k, v = (x @ layer.qkv.weight.T).reshape(t, 3, heads, size).unbind(1)
    reads = torch.zeros(t, heads, size, dtype=x.dtype, device=x.device)
    for i in range(t):
        for h in range(heads):
            weights = phi(k[: i + 1, h]) @ phi(q[i, h])
            reads[i, h] = weights @ v[: i + 1, h] / (weights.sum() if normalize else 1)
    if not normalize:
        reads = rms(reads, layer.norm.eps) * layer.norm.weight
    return reads.reshape(t, -1) @ layer.out.weight.T


@pytest.mark.parametrize(
    ("name", "normalize"),
    [("elu_plus_one", False), ("elu_plus_one", True), ("relu", False), ("identity", False)],
)
def test_it_is_the_sum_over_earlier_tokens(device, name, normalize):
    layer = layers.build("linear_attention", D, heads=4, feature_map=name, normalize=normalize).to(device).double()
    x = text(device, 2, 9)
    right = torch.stack([written_out(layer, row, MAPS[name], normalize) for row in x])
    assert distance(layer(x).y, right) < 1e-12


def test_the_normalizer_is_one_more_value_row_that_counts_keys(device):
    layer = build("linear_attention normalized", device)
    x = text(device, 1, 6)
    keys = (x @ layer.qkv.weight.T).reshape(1, 6, 3, 4, 8)[:, :, 1]
    assert distance(layer(x).state.memory[:, :, -1], (F.elu(keys) + 1).sum(1)) < 1e-12


def test_where_every_weight_is_zero_the_read_is_zero_and_gradients_are_finite(device):
    layer = layers.build("linear_attention", D, feature_map="relu", normalize=True).to(device).double()
    with torch.no_grad():
        layer.qkv.weight[:D] = 0
    x = text(device, 1, 5).requires_grad_()
    y, _ = layer(x)
    y.sum().backward()
    assert not y.any() and x.grad.isfinite().all()


def test_a_normalized_read_lies_between_the_values_that_it_mixes(device):
    layer = layers.build("linear_attention", D, normalize=True, heads=1, head_dim=D).to(device).double()
    with torch.no_grad():
        layer.qkv.weight[2 * D :] = layer.out.weight.copy_(torch.eye(D))
    x = text(device, 1, 50)
    y, _ = layer(x)
    assert (y <= x.cummax(1).values + 1e-12).all() and (y >= x.cummin(1).values - 1e-12).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_map": "exp"}, "feature_map must be one of identity, elu_plus_one, relu, but came as 'exp'"),
        ({"feature_map": "identity", "normalize": True}, "may make zero. Use one of elu_plus_one, relu"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("linear_attention", D, **options)
