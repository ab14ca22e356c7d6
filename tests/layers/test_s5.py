"""S5 against its recurrence written out, its initial system, and signals sampled at another rate."""

import math

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv
from lavagna import layers
from sample_layers import D, build, distance, text


def states(layer, u):
    """The complex states (t, p) of one sequence, step by step."""
    A = -layer.A_log.exp() + 1j * layer.A_imag
    step = layer.step_rescale * layer.log_step.exp()
    decay = torch.exp(step * A)
    write = ((decay - 1) / A)[:, None] * torch.view_as_complex(layer.B)
    x, every = torch.zeros_like(decay), []
    for now in u:
        x = decay * x + write @ now.to(write)
        every.append(x)
    return torch.stack(every)


def written_out(layer, u):
    """The layer's answer to one sequence (t, d)."""
    y = layer.D * u
    for direction, C in enumerate(torch.view_as_complex(layer.C)):
        x = states(layer, u.flip(0)).flip(0) if direction else states(layer, u)
        y = y + 2 * (x @ C.T).real
    a, b = (F.gelu(y) @ layer.out.weight.T).chunk(2, -1)
    return a * torch.sigmoid(b)


@pytest.mark.parametrize("form", [*layers.layer_class("s5").forms, "auto"])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("length", [1, 9])
def test_it_is_its_recurrence(device, length, bidirectional, form):
    layer = layers.build("s5", D, d_state=8, bidirectional=bidirectional, step_rescale=1.5).to(device).double()
    x = text(device, 2, length)
    y = layer(x, form=form).y
    assert distance(y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 1000])
def test_steps_equal_the_whole_at_every_length(device, length):
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        layer, x = layers.build("s5", 16).to(device, dtype), torch.randn(1, length, 16, device=device, dtype=dtype)
        right, last = layer.double()(x.double(), form="recurrent")
        layer.to(dtype)
        y, state = layer(x)
        assert distance(y.double(), right) < tolerance and distance(state.memory.double(), last.memory) < tolerance


@pytest.mark.parametrize("blocks", [1, 3])
def test_it_starts_as_copies_of_the_normal_part_of_hippo(blocks):
    layer = layers.build("s5", 400, d_state=24, blocks=blocks).double()
    half = 12 // blocks
    Lambda, _, _, V = lv.lti.nplr("legs", 2 * half)
    A = -layer.A_log.exp() + 1j * layer.A_imag
    assert torch.allclose(A, Lambda[:half].repeat(blocks).to(A), atol=1e-5)
    # Turned back out of the eigenvectors, B and C are real matrices of a LeCun-normal spread.
    V = V[:, :half]
    B = 2 * (V @ torch.view_as_complex(layer.B).unflatten(0, (blocks, half))).real
    C = 2 * (torch.view_as_complex(layer.C[0]).unflatten(-1, (blocks, half)) @ V.mH).real
    assert B.std().item() == pytest.approx(400**-0.5, rel=0.1) and C.std().item() == pytest.approx(24**-0.5, rel=0.1)
    steps = layer.log_step.exp()
    assert (steps > 0.999e-3).all() and (steps < 0.1001).all()


def test_the_first_system_is_the_dense_one_it_comes_from():
    """Without skip and gate, the answer is that of the real normal part of HiPPO with real B and C."""
    layer = layers.build("s5", D, d_state=8, blocks=1, dt_min=0.05, dt_max=0.05).double()
    Lambda, _, _, V = lv.lti.nplr("legs", 8)
    half = V[:, :4]
    A = (V * Lambda @ V.mH).real
    B = 2 * (half @ torch.view_as_complex(layer.B)).real
    C = 2 * (torch.view_as_complex(layer.C[0]) @ half.mH).real
    Ab, Bb = lv.lti.discretize(A, B, layer.log_step[0].exp(), "zoh")
    u, x, right = text(torch.device("cpu"), 1, 9), torch.zeros(8, dtype=torch.float64), []
    for now in u[0]:
        x = Ab @ x + Bb @ now
        right.append(C @ x)
    seen = {}
    layer.out.register_forward_pre_hook(lambda module, given: seen.update(y=given[0]))
    layer(u)
    assert distance(seen["y"][0], F.gelu(torch.stack(right) + layer.D * u[0])) < 1e-6


@pytest.mark.parametrize("form", ["recurrent", "convolution"])
def test_a_held_signal_sampled_twice_as_densely_is_answered_the_same(device, form):
    layer = build("s5", device)
    x = text(device, 2, 20)
    y, state = layer(x, form=form)
    layer.step_rescale = 0.5
    twice, last = layer(x.repeat_interleave(2, 1), form=form)
    assert distance(twice[:, 1::2], y) < 1e-12 and distance(last.memory, state.memory) < 1e-12


def test_a_smooth_signal_sampled_twice_as_densely_is_answered_nearly_the_same_the_denser_the_nearer(device):
    layer = layers.build("s5", D, d_state=8, dt_min=0.05, dt_max=0.05).to(device).double()
    phases = torch.linspace(0, 6, D, dtype=torch.float64, device=device)

    def answer(samples, rescale):
        times = torch.arange(1, samples + 1, dtype=torch.float64, device=device) / samples
        layer.step_rescale = rescale
        return layer(torch.sin(4 * math.pi * times[:, None] + phases)[None]).y

    coarse, middle, fine = answer(50, 1.0), answer(100, 0.5), answer(200, 0.25)
    first, second = distance(middle[:, 1::2], coarse), distance(fine[:, 1::2], middle)
    # The held signal is late by half a sample.
    assert first < 0.15 and 0.4 < second / first < 0.6


@pytest.mark.parametrize("step", [1e-6, 1e-3, 1.0, 1e2])
@pytest.mark.parametrize("log_rate", [-200.0, -5.0, 0.0])
@pytest.mark.parametrize("length", [3, 100])
def test_gradients_are_finite_for_every_step_and_rate(device, step, log_rate, length):
    layer = layers.build("s5", D, d_state=8).to(device)
    with torch.no_grad():
        layer.log_step.fill_(math.log(step))
        layer.A_log.fill_(log_rate)
        layer.A_imag[0] = 0
    for form in layer.forms:
        y, state = layer(text(device, 1, length, torch.float32), form=form)
        grads = torch.autograd.grad(y.square().sum() + state.memory.square().sum(), list(layer.parameters()))
        assert y.isfinite().all() and all(grad.isfinite().all() for grad in grads), form


def test_gradients_through_both_states_are_those_of_differences(device):
    layer, x = layers.build("s5", 16, d_state=4).to(device).double(), text(device, 2, 5)[..., :16]
    memory = torch.randn(2, 2, 1, 1, 2, dtype=torch.float64, device=device).requires_grad_()
    start = layer.initial_state(2)
    for form in ("recurrent", "convolution"):

        def run(memory, form=form):
            y, state = layer(x, start.replace(memory=memory), form=form)
            return y, state.memory

        assert torch.autograd.gradcheck(run, memory, fast_mode=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 7}, "d_state must be even for conjugate pairs, but came as 7. Use 8"),
        ({"d_state": 16, "blocks": 3}, "blocks=3 does not divide d_state / 2 = 8. Use blocks=1"),
        ({"readout": "zero"}, "readout must be one of lecun, normal, but came as 'zero'"),
        ({"dt_min": 1.0}, "dt_min must be a finite number above 0 and at most 0.1"),
        ({"step_rescale": 0.0}, "step_rescale must be a finite number above 0"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("s5", D, **options)
