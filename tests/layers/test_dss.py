"""DSS is the convolution of its paper, at lags below `max_length` and past it."""

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, build, distance, text


def kernel(layer, lags):
    """The filter of every channel, (d, lags), written out lag by lag."""
    z = layer.log_step.exp()[:, None] * spectrum(layer)
    C = torch.view_as_complex(layer.C[0])
    if layer.method == "softmax":
        weights = C / spectrum(layer) / sum((r * z).exp() for r in range(layer.max_length))
    else:
        weights = C * (z.exp() - 1) / spectrum(layer)
    return torch.stack([2 * (weights * (lag * z).exp()).sum(-1).real for lag in range(lags)], -1)


def spectrum(layer):
    return torch.complex(-layer.A_log.exp() if layer.A_real is None else layer.A_real, layer.A_imag)


def written_out(layer, u):
    K = kernel(layer, len(u))
    y = torch.stack([sum(K[:, lag] * u[t - lag] for lag in range(t + 1)) for t in range(len(u))])
    a, b = (F.gelu(y + layer.D * u) @ layer.out.weight.T).chunk(2, -1)
    return a * b.sigmoid()


@pytest.mark.parametrize("variant", ["dss", "dss short", "dss exp"])
def test_it_is_its_filter(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    with torch.no_grad():
        assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("real", [0.0, 1e-3, 2.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_modes_that_grow_are_normalized_too(device, real, dtype):
    layer = layers.build("dss", D, d_state=4, max_length=40, dt_min=0.5, dt_max=2).to(device, dtype)
    with torch.no_grad():
        layer.A_real.fill_(real)
        layer.A_imag.mul_(0.37)
        x = text(device, 1, 40, dtype)
        right = written_out(layer.double(), x[0].double())
        layer.to(dtype)
        for form in layer.forms:
            assert distance(layer(x, form=form).y[0].double(), right) < (1e-10 if dtype == torch.float64 else 1e-5)


def test_the_filter_does_not_depend_on_the_call_s_length(device):
    layer, x = build("dss short", device), text(device, 1, 12)
    for length in (3, 5, 6, 11):
        assert distance(layer(x[:, :length]).y, layer(x).y[:, :length]) < 1e-12


def test_without_softmax_it_is_s4d_with_one_spectrum_for_all_channels(device):
    layer, x = build("dss exp", device), text(device, 2, 9)
    other = layers.build("s4d", D, d_state=8, init="lin").to(device, torch.float64)
    own = dict(layer.named_parameters())
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if name != "system.B":
                parameter.copy_(own[name.removeprefix("system.")])
    assert distance(layer(x).y, other(x).y) < 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 5}, "dss: d_state must be even for conjugate pairs, but came as 5. Use 6"),
        ({"max_length": 0}, "dss: max_length must be an int >= 1, but came as 0"),
        ({"method": "tanh"}, "dss: method must be one of softmax, exp, but came as 'tanh'"),
        ({"dt_min": 0}, "dss: dt_min must be a finite number above 0"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("dss", D, **options)
