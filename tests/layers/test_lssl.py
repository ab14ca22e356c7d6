"""LSSL against its recurrence written out, with every discretization, and its initial values."""

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers, lti
from sample_layers import D, build, distance, far, text

FORMS = layers.layer_class("lssl").forms


def answers(layer, u, direction=0):
    """What the systems say to one sequence (t, d), step by step: (t, d, channels)."""
    y = torch.zeros(*u.shape, layer.outputs, dtype=u.dtype, device=u.device)
    eye = torch.eye(len(layer.B), dtype=u.dtype, device=u.device)
    for channel, step in enumerate(layer.log_step.exp()):
        half = step * layer.A / 2
        A_bar, B_bar = torch.linalg.solve(eye - half, eye + half), torch.linalg.solve(eye - half, step * layer.B)
        x = torch.zeros_like(B_bar)
        for t in range(len(u)):
            x = A_bar @ x + B_bar * u[t, channel]
            y[t, channel] = layer.C[direction, channel] @ x
    return y


def written_out(layer, u):
    y = answers(layer, u).flatten(1)
    if layer.bidirectional:
        y = y + answers(layer, u.flip(0), 1).flip(0).flatten(1)
    skip = layer.D * u.repeat_interleave(layer.outputs, 1)
    a, b = (F.gelu(y + skip) @ layer.out.weight.T).chunk(2, -1)
    return a * b.sigmoid()


def small(device, d_model=4, **options):
    return layers.build("lssl", d_model, d_state=4, **options).to(device).double()


def random(device, *shape):
    return torch.randn(*shape, device=device, dtype=torch.float64)


@pytest.mark.parametrize("options", [{}, {"channels": 3}, {"bidirectional": True}, {"init": "random"}], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_it_is_its_recurrence(device, options, form):
    layer, x = small(device, **options), random(device, 2, 70, 4)
    assert distance(layer(x, form=form).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("discretization", ["zoh", "euler", "backward_euler"])
def test_every_form_steps_by_the_rule_asked_for(device, form, discretization):
    layer, x = small(device, discretization=discretization, dt_max=0.02), random(device, 1, 9, 4)
    A, B = lti.discretize(layer.A, layer.B, layer.log_step.exp(), discretization, structure="dense")
    state = random(device, 4, 4)
    memory = layer(x, layer.initial_state(1).replace(memory=state[None, :, None]), form=form).state.memory
    for t in range(9):
        state = (A @ state.unsqueeze(-1)).squeeze(-1) + B * x[0, t, :, None]
    assert torch.allclose(memory[0, :, 0], state, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 200])
def test_a_given_state_is_read_and_carried_in_every_form(device, form, length):
    layer, x = small(device, channels=2), random(device, 3, length, 4)
    start = layer.initial_state(3).replace(memory=random(device, 3, 4, 1, 4))
    mask = torch.arange(length, device=device) < torch.tensor([[length], [length // 2], [0]], device=device)
    for real in (None, mask):
        y, last = layer(x, start, form=form, mask=real)
        right, state = layer(x, start, form="recurrent", mask=real)
        assert distance(y, right) < 1e-12 and far(last, state) < 1e-12


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_thousand_steps_one_by_one_are_the_convolution(device, dtype, tolerance):
    layer, x = build("lssl", device, dtype), text(device, 1, 1000, dtype)
    y, last = layer(x)
    stepped, state = layer(x, form="recurrent")
    assert distance(y, stepped) < tolerance and far(last, state) < tolerance


@pytest.mark.parametrize("form", ["convolution", "scan", "chunkwise"])
def test_the_gradient_of_the_given_state_and_through_the_last_one_is_exact(device, form):
    layer, x = small(device, 2), random(device, 1, 5, 2).requires_grad_()
    memory = random(device, 1, 2, 1, 4).requires_grad_()

    def run(memory, x):
        y, state = layer(x, layer.initial_state(1).replace(memory=memory), form=form)
        return y, state.memory

    assert torch.autograd.gradcheck(run, (memory, x))


def test_a_step_after_an_update_is_that_of_the_new_weights(device):
    layer, x = small(device), random(device, 1, 12, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    layer(x).y.square().sum().backward()
    optimizer.step()
    state, steps = layer.initial_state(1), []
    for t in range(12):
        y, state = layer(x[:, t : t + 1], state)
        steps.append(y)
    assert distance(torch.cat(steps, 1)[0], written_out(layer, x[0])) < 1e-12


@pytest.mark.parametrize("init", ["legs", "legt", "lagt", "fout"])
def test_a_new_layer_has_hippos_system(init):
    layer = layers.build("lssl", D, d_state=8, init=init)
    for own, wanted in zip((layer.A, layer.B), lti.hippo(init, 8), strict=True):
        assert distance(own.double(), wanted) < 1e-6
    steps = layer.log_step.exp()
    assert (steps > 0.999e-3).all() and (steps < 0.1001).all()


def test_a_random_matrix_is_as_large_as_the_paper_has_it():
    layer = layers.build("lssl", D, d_state=256, init="random")
    assert 0.9 < 256 * layer.A.std().item() < 1.1 and 0.7 < layer.B.std().item() < 1.3


def test_a_fixed_matrix_is_saved_but_not_learned(device):
    layer = small(device, fixed=True)
    assert "A" in layer.state_dict() and "A" not in dict(layer.named_parameters())
    learned = small(device)
    assert "A" in dict(learned.named_parameters())
    learned.load_state_dict(layer.state_dict())
    x = random(device, 1, 7, 4)
    assert torch.equal(layer(x).y, learned(x).y)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1e-6, 1e2])
def test_numbers_and_gradients_are_finite_for_any_step(device, form, step):
    layer, x = layers.build("lssl", D, d_state=8).to(device), text(device, 1, 66, torch.float32)
    with torch.no_grad():
        layer.log_step.fill_(step).log_()
    y, state = layer(x, form=form)
    (y.square().sum() + state.memory.square().sum()).backward()
    assert y.isfinite().all() and all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "lssl: d_state must be an int >= 1"),
        ({"channels": 0}, "lssl: channels must be an int >= 1"),
        ({"init": "legz"}, "lssl: init must be one of legs, legt, lagt, fout, random, but came as 'legz'"),
        ({"init": "fout", "d_state": 5}, "lssl: init 'fout' needs an even d_state, but it came as 5. Use 6"),
        ({"discretization": "mamba"}, "lssl: discretization must be one of bilinear, zoh, euler, backward_euler"),
        ({"dt_min": 0.2}, "lssl: dt_min must be a finite number above 0 and at most 0.1"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("lssl", D, **options)
