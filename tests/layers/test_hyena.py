"""Hyena against its sums written out, its filters, and how far a text may go."""

import math

import pytest
import torch

import lavagna as lv
from lavagna import layers
from sample_layers import D, build, convolved, distance, text


def filter_at(network, lag):
    """Every filter at one lag (f, d), by the formulas."""
    t = lag / (network.max_length - 1)
    features = [t]
    frequencies = [1e-4 + n * (network.bands - 1 - 1e-4) / max(network.bands - 1, 1) for n in range(network.bands)]
    angles = [2 * math.pi * lag * f / network.max_length for f in frequencies]
    features += [math.cos(angle) for angle in angles] + [-math.sin(angle) for angle in angles]
    hidden = torch.tensor(features, dtype=torch.float64, device=network.frequencies.device)
    for layer in network.sines:
        hidden = torch.sin(network.frequencies * (layer.weight @ hidden + layer.bias))
    h = (network.read.weight @ hidden).reshape(network.filters, network.channels)
    slow, fast = math.log(100) / 1.5, math.log(100) / 0.3
    rates = [slow + c * (fast - slow) / (network.channels - 1) for c in range(network.channels)]
    return h * torch.exp(-t * torch.tensor(rates, dtype=torch.float64, device=h.device))


def written_out(layer, x):
    """One sequence (t, d): gates and sums over the past, lag by lag."""
    mixed = convolved(x @ layer.inputs.weight.T + layer.inputs.bias, layer.conv.weight, layer.conv.bias)
    *gates, v = mixed.split(D, -1)
    h = torch.stack([filter_at(layer.filter, lag) for lag in range(len(x))])
    for i, gate in enumerate(reversed(gates[1:])):
        z = gate * v
        v = layer.bias[i] * z
        for t in range(len(x)):
            v[t] = v[t] + sum(h[lag, i] * z[t - lag] for lag in range(t + 1))
    return gates[0] * v @ layer.out.weight.T + layer.out.bias


@pytest.mark.parametrize("form", ["recurrent", "parallel", "convolution"])
@pytest.mark.parametrize("variant", ["hyena", "hyena deep"])
def test_it_is_its_sum(variant, device, form):
    layer, x = build(variant, device), text(device, 2, 9)
    # Nine lags of 2048 look much alike; of ten they don't.
    layer.max_length = layer.filter.max_length = 10
    right = torch.stack([written_out(layer, row) for row in x])
    assert distance(layer(x, form=form).y, right) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_filter_at_a_lag_is_the_same_to_the_bit_whatever_the_length(device, dtype):
    network = build("hyena deep", device, dtype).filter
    longest = network(100)
    assert all(torch.equal(network(lags), longest[..., :lags]) for lags in (1, 2, 63, 64, 65, 99))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_to_half_precision_leaves_the_filters_as_they_are(device, dtype):
    network = layers.build("hyena", D, max_length=100).to(device).filter
    before = network(100)
    assert torch.equal(network.to(dtype)(100), before)


def test_a_filter_fades_to_a_hundredth_within_its_reach(device):
    network = layers.build("hyena", D, max_length=101).filter.to(device).double()
    window = network._window(torch.arange(101, device=device).double())
    assert torch.allclose(window[30, -1], torch.tensor(0.01, device=device).double())
    assert torch.allclose(window[100, 0] ** 1.5, torch.tensor(0.01, device=device).double())
    assert (window[1:] < window[:-1]).all() and (window[0] == 1).all()


@pytest.mark.parametrize(("first", "second"), [(150, 150), (299, 1), (1, 299), (20, 280)])
def test_long_texts_by_transform_are_the_steps_one_by_one(device, first, second):
    layer = layers.build("hyena", D, max_length=300, order=3).to(device)
    x = text(device, 1, 300, torch.float32)
    right, last = layer.double()(x.double(), form="recurrent")
    layer.float()
    y, state = layer(x[:, :first], form="convolution")
    rest, end = layer(x[:, first:], state, form="convolution")
    assert distance(torch.cat([y, rest], 1).double(), right) < 1e-5
    assert distance(end.inputs.double(), last.inputs) < 1e-5


def test_its_state_keeps_what_the_filters_read_and_grows_by_one_entry_a_token(device):
    layer, sizes, state = layers.build("hyena", D, order=3).to(device), [], None
    for _ in range(4):
        state = layer(text(device, 1, 1, torch.float32), state).state
        sizes.append(state.inputs.numel())
    assert sizes == [2 * D, 4 * D, 6 * D, 8 * D]


def test_rows_of_unlike_length_are_kept_without_holes(device):
    layer, x = build("hyena", device), text(device, 2, 6)
    mask = torch.tensor([[0, 1, 0, 1, 0, 0], [1, 1, 0, 1, 1, 0]], device=device)
    state = layer(x, mask=mask).state
    assert state.inputs.shape[1] == 4
    assert not state.inputs[0, 2:].any() and state.inputs[0, :2].flatten(1).any(1).all()


def test_a_text_may_have_max_length_tokens_and_no_more(device):
    layer, x = layers.build("hyena", D, max_length=8).to(device), text(device, 2, 10, torch.float32)
    state = layer(x[:, :8]).state
    calls = [lambda: layer(x[:, :9]), lambda: layer(x[:, 8:9], state), lambda: layer(x[:, :4], layer(x[:, :5]).state)]
    for call in calls:
        with pytest.raises(ValueError, match="hyena: a text comes to 9 tokens, but .* max_length = 8. Build"):
            call()
    assert layer(x[:, :0], state).y.shape == (2, 0, D)


def test_masked_steps_and_other_texts_of_a_row_do_not_count(device):
    layer, x = layers.build("hyena", D, max_length=8).to(device), text(device, 1, 20, torch.float32)
    mask = torch.arange(20, device=device)[None] % 2 == 0
    state = layer(x[:, :16], mask=mask[:, :16]).state
    assert layer(x[:, :3], state, mask=torch.zeros(1, 3, device=device)).state.tokens_seen.tolist() == [8]
    assert layer(x, cu_seqlens=[0, 8, 12, 20]).state.tokens_seen.tolist() == [8, 4, 8]
    with pytest.raises(ValueError, match="comes to 10 tokens"):
        layer(x, mask=mask)


def test_a_model_generates_up_to_max_length(device):
    config = lv.ModelConfig("hyena", 16, 1, 11, options={"max_length": 12})
    model, ids = lv.LanguageModel(config).to(device), torch.randint(11, (1, 5), device=device)
    assert lv.generate(model, ids, max_new_tokens=8).ids.shape == (1, 13)
    with pytest.raises(ValueError, match="max_length = 12"):
        lv.generate(model, ids, max_new_tokens=9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 1}, "order must be an int >= 2, but came as 1"),
        ({"max_length": 0}, "max_length must be an int >= 1, but came as 0"),
        ({"frequency": 0.0}, "frequency must be a finite number above 0"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("hyena", D, **options)
