"""What every layer made of linear systems must hold: steps, lengths, gradients at the ends, nothing stale."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from lavagna.layers.time_invariant import TimeInvariant
from lavagna.modules.steps import Steps
from sample_layers import distance, far

WIDTH = 16
BLOCKS = [name for name in layers.names() if issubclass(layers.layer_class(name), TimeInvariant)]
SYSTEMS = [*BLOCKS, "h3", "mamba", "mamba2", "mamba3"]
every = pytest.mark.parametrize("name", SYSTEMS)
precisions = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])


def build(name, device, dtype=torch.float64, **options):
    return layers.build(name, WIDTH, **options).to(device, dtype)


def text(device, t, dtype=torch.float64, b=1):
    return torch.randn(b, t, WIDTH, device=device, dtype=dtype)


@torch.no_grad()
def stepped(layer, x):
    """Outputs and states, one step a call."""
    state, ys, states = None, [], []
    for t in range(x.shape[1]):
        y, state = layer(x[:, t : t + 1], state)
        ys.append(y)
        states.append(state)
    return torch.cat(ys, 1), states


@every
@precisions
def test_steps_equal_a_call_of_every_length_up_to_70(name, dtype, tolerance, device):
    layer, x = build(name, device, dtype), text(device, 70, dtype)
    ys, states = stepped(layer, x)
    for length in range(1, 71):
        with torch.no_grad():
            y, state = layer(x[:, :length])
        assert distance(ys[:, :length], y) < tolerance, length
        assert far(states[length - 1], state) < tolerance, length


@every
@precisions
def test_a_thousand_steps_of_the_recurrence_equal_the_default_form(name, dtype, tolerance, device):
    layer, x = build(name, device, dtype), text(device, 1000, dtype)
    with torch.no_grad():
        (y, state), (looped, last) = layer(x), layer(x, form="recurrent")
    assert distance(looped, y) < tolerance and far(last, state) < tolerance


@pytest.mark.slow
@every
@precisions
def test_a_thousand_calls_of_one_step_equal_one_call(name, dtype, tolerance, device):
    layer, x = build(name, device, dtype), text(device, 1000, dtype)
    ys, states = stepped(layer, x)
    with torch.no_grad():
        y, state = layer(x)
    assert distance(ys, y) < tolerance and far(states[-1], state) < tolerance


@every
@pytest.mark.parametrize("form", ["recurrent", "convolution"])
def test_gradients_are_right_from_the_state_before_and_through_the_one_after(name, form, device):
    layer, x = build(name, device, d_state=4), text(device, 5).requires_grad_()
    if form not in layer.forms:
        pytest.skip("the layer has no such form")
    state = layer(text(device, 3)).state.detach()
    names = [each for each in state.tensors() if each != "tokens_seen"]

    def run(x, *tensors):
        y, last = layer(x, state.replace(**dict(zip(names, tensors, strict=True))), form=form)
        return y, *(last.tensors()[each] for each in names)

    given = [state.tensors()[each].clone().requires_grad_() for each in names]
    assert torch.autograd.gradcheck(run, (x, *given), fast_mode=True)


@every
@pytest.mark.parametrize("step", [1e-6, 1.0, 1e2])
@pytest.mark.parametrize("fading", [True, False])
def test_gradients_are_finite_for_any_step_and_without_any_fading(name, step, fading, device):
    layer = build(name, device, torch.float32)
    with torch.no_grad():
        for place, parameter in layer.named_parameters():
            if place.endswith("log_step"):
                parameter.fill_(math.log(step))
            elif place.endswith("dt_bias"):
                parameter.fill_(math.log(math.expm1(step)))
            elif place.endswith(("A_log", "A_real")) and not fading:
                parameter.fill_(0 if place.endswith("A_real") else -torch.inf)
    for length in (2, 63, 64):
        for form in ("auto", "recurrent"):
            y, state = layer(text(device, length, torch.float32), form=form)
            grads = torch.autograd.grad(y.square().sum() + state.memory.square().sum(), list(layer.parameters()))
            assert y.isfinite().all() and all(grad.isfinite().all() for grad in grads), (length, form)


@every
def test_what_was_saved_at_one_length_goes_on_at_another(name, device, tmp_path):
    layer = build(name, device, torch.float32)
    layer(text(device, 100, torch.float32)).y.sum().backward()
    torch.save(layer.state_dict(), tmp_path / "weights")
    other = build(name, device, torch.float32)
    other.load_state_dict(torch.load(tmp_path / "weights"))
    x = text(device, 200, torch.float32)
    assert torch.equal(other(x).y, layer(x).y)
    assert all(parameter.is_contiguous() for parameter in layer.parameters())


@every
def test_a_step_of_an_optimizer_changes_the_next_call_at_once(name, device):
    layer, x = build(name, device), text(device, 20)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)
    layer(x).y.square().sum().backward()
    _, state = layer(x[:, :5])
    optimizer.step()
    fresh = build(name, device)
    fresh.load_state_dict(layer.state_dict())
    state = state.detach()
    for form in ("auto", "recurrent"):
        assert torch.equal(layer(x, form=form).y, fresh(x, form=form).y)
    assert torch.equal(layer(x[:, 5:6], state).y, fresh(x[:, 5:6], state).y)


@every
def test_a_memory_fades_in_bfloat16_as_in_float32(name, device):
    layer = build(name, device, torch.float32)
    state = layer(text(device, 50, torch.float32)).state
    memories = []
    for one in (layer, copy.deepcopy(layer).bfloat16()):
        dtype = one.out.weight.dtype
        start = one.initial_state(1).replace(memory=state.memory)
        memories.append(one(torch.zeros(1, 500, WIDTH, device=device, dtype=dtype), start).state.memory)
    assert memories[1].dtype == torch.float32 and distance(*memories) < 1e-6


@pytest.mark.parametrize("name", BLOCKS)
def test_both_directions_are_two_systems_added(name, device):
    both = build(name, device, d_state=4, bidirectional=True)
    alone = [build(name, device, d_state=4) for _ in range(2)]
    with torch.no_grad():
        for direction, layer in enumerate(alone):
            for place, parameter in both.named_parameters():
                own = layer.get_parameter(place)
                own.copy_(parameter if own.shape == parameter.shape else parameter[direction : direction + 1])
    x = text(device, 12)
    mask = torch.tensor([[1, 0, 1, 1, 1, 0, 1, 1, 1, 0, 1, 1]], device=device)
    for given in ({}, {"mask": mask}, {"mask": mask, "cu_seqlens": [0, 7, 12]}):
        steps = Steps(name, x, **given)
        memory = alone[0].initial_state(steps.sequences).memory
        u = steps.hide(x)
        y = alone[0].respond(u, memory, steps, 0)[0]
        y = y + steps.reverse(alone[1].respond(steps.reverse(u), memory, steps, 0)[0])
        hidden = F.gelu(y + both.D.view(WIDTH, -1).mul(u.unsqueeze(-1)).flatten(2))
        for form in both.forms:
            y, state = both(x, form=form, **given)
            assert state is None and distance(y, steps.hide(F.glu(hidden @ both.out.weight.T, -1))) < 1e-12, form
