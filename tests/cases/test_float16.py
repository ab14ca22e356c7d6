"""What float16 must hold: reads and products beyond 65504 that a norm, a division or a map brings down again."""

import copy

import pytest
import torch

from lavagna import layers
from lavagna.modules import feed_forward
from lavagna.modules.feed_forward import FEED_FORWARDS
from lavagna.modules.linear import OutLinear
from lavagna.modules.steps import Steps
from sample_layers import VARIANTS, D, build, ways_of

NORMED = ["rwkv5", "rwkv6", "rwkv7", "retention", "gla", "fast_weight", "linear_attention", "mamba2"]
# The largest number of float16.
MOST = 65504


def near(y, right):
    """Whether all that float16 can hold is there, and as near as numbers that are sums of larger ones can be.

    Only beside numbers whose own rounding reaches from it to MOST may one be infinite.
    """
    held = right.abs() < MOST
    assert held.any() and y.dtype == torch.float16 and not y.isnan().any()
    size = right.abs().amax(-1, keepdim=True).clamp_min(right[held].abs().max())
    assert (y.isfinite() | (MOST - right.abs() < torch.finfo(y.dtype).eps * size))[held].all()
    assert ((y.double().clamp(-MOST, MOST) - right).abs() / size)[held].max() < 1e-2


@pytest.mark.parametrize("name", NORMED)
def test_a_read_that_is_normed_may_be_larger_than_float16_holds(name, device):
    layer = layers.build(name, 32).to(device)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
        # Behind the norm of rwkv7 there is a bonus, which nothing else brings down.
        layer.out.weight *= 1e-4 if name == "rwkv7" else 1e-2
    x = 300 * torch.randn(2, 5, 32, device=device)
    layer, x = layer.half(), x.half()
    right = copy.deepcopy(layer).double()(x.double()).y
    got = layer(x).y
    assert got.dtype == torch.float16
    assert (got - right).abs().max() < 2e-2 * right.abs().max()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_layer_that_reads_large_numbers_is_that_of_float64(variant, device):
    layer = build(variant, device).half()
    wide = copy.deepcopy(layer).double()
    x = (30 * torch.randn(2, 20, D, device=device)).half()
    with torch.no_grad():
        right = wide(x.double()).y
        for form, backend in ways_of(layer):
            if form in ("recurrent", "auto"):
                near(layer(x, form=form, backend=backend).y, right)


@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.parametrize("name", FEED_FORWARDS)
def test_a_feed_forward_net_that_reads_large_numbers_is_that_of_float64(name, scale, device):
    net = feed_forward.build(name, 128, 512)
    net.reset_parameters()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    net = net.to(device).half()
    x = (scale * torch.randn(2, 10, 128, device=device)).half()
    with torch.no_grad():
        y, right = (
            each(z, each.initial_tensors(2, device, z.dtype), Steps("net", z))[0]
            for each, z in ((net, x), (copy.deepcopy(net).double(), x.double()))
        )
    near(y, right)


@pytest.mark.parametrize("bias", [False, True])
def test_a_map_of_numbers_beyond_float16_is_exact_where_its_sums_are_not(bias, device):
    linear = OutLinear(8, 3, bias=bias).to(device)
    linear.reset_parameters()
    x, factor = torch.randn(4, 8, device=device), torch.rand(4, 3, device=device)
    # Its products with the small weights are within float16, though it is not.
    x[0], x[1] = 1e7 * x[0].sign(), 0
    with torch.no_grad():
        linear.weight *= 1e-3
        right = factor * torch.nn.functional.linear(x, linear.weight.half().float(), linear.bias)
        y = linear.half()(x, torch.float16, factor=factor)
    assert y.isfinite().all() and torch.allclose(y.float(), right, rtol=2e-3, atol=1e-3)
    assert torch.equal(linear(x[2:], torch.float16), torch.nn.functional.linear(x[2:].half(), *linear.parameters()))
