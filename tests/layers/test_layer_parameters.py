"""Parameters of every layer: initial values, gradients, weight decay, dtypes, strides."""

import copy
import math

import pytest
import torch

from lavagna import layers
from lavagna.modules.precision import Wide
from sample_layers import BACKENDS, VARIANTS, D, build, distance, far, text

every = pytest.mark.parametrize("variant", VARIANTS)


def fresh(variant):
    name, options = VARIANTS[variant]
    return layers.build(name, D, **options)


def dynamics(layer):
    """What no cast narrows, by name."""
    return {
        f"{place}.{name}": parameter
        for place, part in layer.named_modules()
        if isinstance(part, Wide)
        for name, parameter in part.named_parameters(recurse=False)
    }


@every
def test_meta_then_empty_then_reset_equals_a_seeded_build(variant):
    torch.manual_seed(7)
    normal = fresh(variant)
    with torch.device("meta"):
        layer = fresh(variant)
    layer.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*layer.parameters(), *layer.buffers()):
            tensor.fill_(torch.nan)
    torch.manual_seed(7)
    layer.reset_parameters()
    assert normal.state_dict().keys() == layer.state_dict().keys()
    assert all(map(torch.equal, normal.state_dict().values(), layer.state_dict().values()))
    marks = [[getattr(p, "no_weight_decay", False) for p in one.parameters()] for one in (normal, layer)]
    assert marks[0] == marks[1]


@every
def test_weight_decay_spares_decays_biases_and_norms(variant):
    layer = fresh(variant)
    # Dynamics are spared whatever their shape.
    wide = {id(parameter) for parameter in dynamics(layer).values()}
    for name, parameter in layer.named_parameters():
        assert getattr(parameter, "no_weight_decay", False) == (parameter.ndim == 1 or id(parameter) in wide), name


@every
@pytest.mark.parametrize("length", [1, 9])
def test_every_parameter_gets_a_gradient(variant, device, length):
    layer = build(variant, device)
    layer(text(device, 2, length)).y.square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert length == 1 or parameter.grad.any(), name


@pytest.mark.parametrize("d_model", [16, 48, 80, 208, 1008])
@pytest.mark.parametrize("name", layers.names())
def test_every_width_that_is_a_multiple_of_16_builds_and_runs(name, d_model):
    layer = layers.build(name, d_model)
    y, _ = layer(torch.randn(1, 3, d_model))
    assert y.shape == (1, 3, d_model) and y.isfinite().all()


@every
@pytest.mark.parametrize("loss", [lambda y: y.sum(), lambda y: y[..., 0].sum(), lambda y: torch.cat([y, y]).sum()])
@pytest.mark.parametrize("backend", BACKENDS)
def test_strides_of_what_came_do_not_matter(variant, device, loss, backend):
    layer = build(variant, device)
    wide = text(device, 3, 14).repeat(1, 1, 2)
    views = [
        wide[:2, :7, 5 : 5 + D],
        wide[:2, ::2, :D],
        wide.transpose(0, 1)[:2, :3, :D],
        wide[:1, :5, :D].expand(2, -1, -1),
    ]
    state = layer(text(device, 2, 2)).state.detach()
    turned = state._map(lambda x: x.mT.contiguous().mT if x.ndim > 2 else x)
    for view in views:
        results = []
        for x, start in ((view.detach(), turned), (view.detach().contiguous(), state)):
            x.requires_grad_()
            y, _ = layer(x, start, backend=backend)
            results.append([y, *torch.autograd.grad(loss(y), [x, *layer.parameters()])])
        assert max(map(distance, *results)) < 1e-12


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_near_float64_and_keeps_a_float32_memory(variant, device, dtype):
    layer, x = build(variant, device, dtype), text(device, 2, 20, dtype)
    reference = build(variant, device)
    reference.load_state_dict(layer.state_dict())
    y, state = layer(x)
    right, _ = reference(x.double(), form="recurrent", backend="torch")
    assert y.dtype == dtype and distance(y.double(), right) < 8 * torch.finfo(dtype).eps
    tensors = state.tensors()
    assert tensors.get("memory", torch.zeros(())).dtype == torch.float32
    assert all(tensors[name].dtype == dtype for name in ("window", "keys", "values") if name in tensors)
    # Products of projections, which may lie beyond float16.
    products = torch.float32 if dtype == torch.float16 else dtype
    assert tensors.get("inputs", torch.zeros((), dtype=products)).dtype == products


@every
def test_autocast_is_near_and_keeps_the_dtypes_of_the_state(variant, device):
    layer, x = build(variant, device, torch.float32), text(device, 2, 20, torch.float32)
    right, _ = layer(x)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        y, state = layer(x)
        _, again = layer(x, state)
    assert distance(y.float(), right) < 0.05
    for name, tensor in state.tensors().items():
        assert tensor.dtype == again.tensors()[name].dtype == layer.initial_state(1).tensors()[name].dtype, name


@every
def test_a_second_reset_draws_anew_within_the_same_bounds(variant):
    layer = fresh(variant)
    before = {name: parameter.detach().clone() for name, parameter in layer.named_parameters()}
    layer.reset_parameters()
    for name, parameter in layer.named_parameters():
        if parameter.ndim > 1 and (parameter.any() or before[name].any()):
            # Spectra start from the same formula every time.
            assert not torch.equal(parameter, before[name]) or parameter.no_weight_decay, name
            assert 0.5 < (parameter.abs().max() / before[name].abs().max()).item() < 2, name


@every
def test_a_repeated_call_is_bit_equal(variant, device):
    layer, x = build(variant, device, torch.float32), text(device, 2, 10, torch.float32)
    (y, state), (again, last) = layer(x), layer(x)
    assert torch.equal(y, again) and far(state, last) == 0


CASTS = {
    "bfloat16": lambda layer: layer.bfloat16(),
    "half": lambda layer: layer.half(),
    "to": lambda layer: layer.to(torch.bfloat16),
    "to a device too": lambda layer: layer.to("cpu", torch.bfloat16),
    "twice, copied between": lambda layer: copy.deepcopy(layer.double().half()).bfloat16(),
    "a model": lambda layer: torch.nn.Sequential(layer).to(torch.float16)[0],
}


@every
@pytest.mark.parametrize("cast", CASTS)
def test_no_cast_narrows_the_dynamics(variant, cast):
    layer = fresh(variant)
    before = {name: parameter.detach().clone() for name, parameter in dynamics(layer).items()}
    layer = CASTS[cast](layer)
    after = dynamics(layer)
    for name, parameter in after.items():
        assert parameter.dtype == torch.float32 and torch.equal(parameter, before[name]), name
    wide = {id(parameter) for parameter in after.values()}
    assert {parameter.itemsize for parameter in layer.parameters() if id(parameter) not in wide} == {2}
    assert {parameter.dtype for parameter in layer.double().parameters()} == {torch.float64}


@every
def test_a_layer_cast_on_the_meta_device_gets_its_dtypes_there(variant):
    with torch.device("meta"):
        layer = fresh(variant).bfloat16()
    plain = fresh(variant).bfloat16()
    layer.to_empty(device="cpu")
    assert [x.dtype for x in layer.parameters()] == [x.dtype for x in plain.parameters()]


@pytest.mark.parametrize("name", ["mamba2", "gated_delta_net"])
def test_a_memory_reaches_as_far_in_bfloat16_as_in_float32(name, device):
    """Decays that add up to e^-3 over 1000 steps; a rate rounded to bfloat16 would be off by one in a hundred."""
    layer = layers.build(name, D).to(device)
    with torch.no_grad():
        layer.A_log.fill_(math.log(0.3))
        layer.dt_bias.fill_(math.log(math.expm1(0.01)))
        layer.step.weight.zero_()
    memories = []
    for one in (layer, copy.deepcopy(layer).bfloat16()):
        state = one.initial_state(1)
        state = state.replace(memory=torch.ones_like(state.memory))
        dtype = one.out.weight.dtype
        memories.append(one(torch.zeros(1, 1000, D, device=device, dtype=dtype), state).state.memory)
    assert memories[1].dtype == torch.float32 and distance(*memories) < 1e-6
    assert distance(memories[0], torch.full_like(memories[0], math.exp(-3))) < 1e-4


@every
def test_a_reset_does_not_depend_on_the_default_device(variant):
    layer = fresh(variant)
    resets = []
    for default in ("cpu", "meta"):
        torch.manual_seed(3)
        with torch.device(default):
            layer.reset_parameters()
        resets.append([tensor.detach().clone() for tensor in layer.state_dict().values()])
    assert all(map(torch.equal, *resets))
