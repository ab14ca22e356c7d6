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
@pytest.mark.sampled(3)
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


@pytest.mark.parametrize("name", [*SYSTEMS, "hyena"])
def test_what_comes_later_leaks_no_more_than_rounding(name, device):
    layer, x = build(name, device, torch.float32), text(device, 300, torch.float32)
    later = x.clone()
    later[:, 200] = 1e6
    with torch.no_grad():
        y, jolted = layer(x).y, layer(later).y
    assert jolted.isfinite().all()
    # Products of inputs are as much larger than the inputs as the outputs are.
    assert (jolted[:, :200] - y[:, :200]).abs().max() < 1e-7 * max(jolted.abs().max(), 1e6)


@pytest.mark.parametrize(
    "name", ["s5", *(pytest.param(name, marks=pytest.mark.slow) for name in [*SYSTEMS, "hyena"] if name != "s5")]
)
def test_a_hundred_thousand_steps_at_once_equal_the_same_in_two_pieces(name, device):
    options = {"max_length": 100_000} if name == "hyena" else {"d_state": 4}
    layer, x = build(name, device, **options), text(device, 100_000)
    with torch.no_grad():
        y, last = layer(x)
        first, state = layer(x[:, :99_700])
        second, state = layer(x[:, 99_700:], state, form="recurrent")
    assert distance(torch.cat([first, second], 1), y) < 1e-11 and far(state, last) < 1e-11


@every
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_input_for_long_neither_stalls_nor_overflows_in_half_precision(name, dtype, device):
    """A memory kept in bfloat16 stops growing at 256 times what a step adds."""
    layer, x = build(name, device, dtype, d_state=8), text(device, 1, dtype).expand(1, 800, WIDTH)
    right = build(name, device, d_state=8)
    right.load_state_dict(layer.state_dict())
    with torch.no_grad():
        y, last = right(x.double())
        for size in (800, 20):
            state, ys = None, []
            for piece in x.split(size, 1):
                one, state = layer(piece, state)
                ys.append(one)
            assert distance(torch.cat(ys, 1).double(), y) < 2e-2, size
            assert distance(state.memory.double(), last.memory) < 2e-2, size


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


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("length", [1, 9])
def test_of_both_directions_every_parameter_gets_a_gradient(name, length, device):
    layer = build(name, device, bidirectional=True)
    layer(text(device, length, b=2)).y.square().sum().backward()
    for place, parameter in layer.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), place
        assert parameter.grad.any() or length == 1, place


@pytest.mark.parametrize("name", BLOCKS)
def test_both_directions_start_as_a_seeded_build_does_after_a_build_without_memory(name):
    torch.manual_seed(3)
    normal = layers.build(name, WIDTH, bidirectional=True)
    with torch.device("meta"):
        late = layers.build(name, WIDTH, bidirectional=True)
    late.to_empty(device="cpu")
    torch.manual_seed(3)
    late.reset_parameters()
    assert all(map(torch.equal, normal.state_dict().values(), late.state_dict().values()))
