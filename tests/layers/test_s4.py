"""S4 against its recurrence written out with a dense matrix, its stability and its initial values."""

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers, lti
from sample_layers import D, build, distance, far, text

variants = pytest.mark.parametrize("variant", ["s4", "s4 free"])


def complex_of(x):
    return torch.complex(x[..., 0], x[..., 1])


def continuous(layer, direction=0):
    """The dense systems of all channels, every mode written out."""
    half = [torch.complex(-layer.A_log.exp(), layer.A_imag)]
    half += [complex_of(x) for x in (layer.P, layer.P if layer.Q is None else layer.Q, layer.B, layer.C[direction])]
    Lambda, P, Q, B, C = (torch.cat([x, x.conj()], -1).to(torch.complex128) for x in half)
    return torch.diag_embed(Lambda) - P.conj().unsqueeze(-1) * Q.unsqueeze(-2), B, C


def answers(layer, u, direction=0):
    """What the systems say to one sequence (t, d), step by step."""
    A, B, C = continuous(layer, direction)
    step = layer.log_step.exp()
    A_bar, B_bar = lti.discretize(A, B, step, "bilinear", structure="dense")
    x, y = torch.zeros_like(B), []
    for now in u:
        x = (A_bar @ x.unsqueeze(-1)).squeeze(-1) + B_bar * now[:, None]
        y.append((C * x).sum(-1).real)
    return torch.stack(y)


def written_out(layer, u):
    y = answers(layer, u)
    if layer.bidirectional:
        y = y + answers(layer, u.flip(0), 1).flip(0)
    a, b = (F.gelu(y + layer.D * u) @ layer.out.weight.T).chunk(2, -1)
    return a * b.sigmoid()


@variants
def test_it_is_its_recurrence(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("form", ["convolution", "recurrent", "chunkwise"])
def test_both_directions_have_one_system_and_a_readout_each(device, form):
    layer, x = layers.build("s4", D, d_state=6, bidirectional=True).to(device).double(), text(device, 1, 70)
    assert distance(layer(x, form=form).y[0], written_out(layer, x[0])) < 1e-12


@variants
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_a_thousand_steps_one_by_one_are_the_convolution(device, variant, dtype, tolerance):
    layer, x = build(variant, device, dtype), text(device, 1, 1000, dtype)
    y, last = layer(x)
    stepped, state = layer(x, form="recurrent")
    assert distance(y, stepped) < tolerance and far(last, state) < tolerance


def test_a_state_goes_on_after_a_thousand_steps(device):
    layer, x = build("s4", device), text(device, 2, 1001)
    whole, last = layer(x)
    _, state = layer(x[:, :1000])
    y, after = layer(x[:, 1000:], state)
    assert distance(y, whole[:, 1000:]) < 1e-12 and far(after, last) < 1e-12


@pytest.mark.parametrize("form", ["convolution", "chunkwise"])
def test_the_gradient_of_the_given_state_and_through_the_last_one_is_exact(device, form):
    layer = layers.build("s4", 2, d_state=4).to(device).double()
    memory = torch.randn(1, 2, 1, 2, 2, device=device, dtype=torch.float64, requires_grad=True)
    x = torch.randn(1, 5, 2, device=device, dtype=torch.float64, requires_grad=True)

    def run(memory, x):
        y, state = layer(x, layer.initial_state(1).replace(memory=memory), form=form)
        return y, state.memory

    assert torch.autograd.gradcheck(run, (memory, x))


def test_a_step_after_an_update_is_that_of_the_new_weights(device):
    layer, x = build("s4", device), text(device, 1, 12)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    _, state = layer(x)
    layer(x).y.square().sum().backward()
    optimizer.step()
    stepped, _ = layer(x[:, :1], state.detach())
    fresh = build("s4", device)
    fresh.load_state_dict(layer.state_dict())
    again, _ = fresh(x[:, :1], state.detach())
    assert torch.equal(stepped, again)
    assert distance(layer(x).y[0], written_out(layer, x[0])) < 1e-12


def test_what_was_learned_at_one_length_serves_at_any(device):
    layer, x = build("s4", device), text(device, 1, 90)
    layer(x[:, :11])
    other = layers.build("s4", D).to(device).double()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x).y, layer(x).y)
    assert distance(layer(x).y[:, :11], layer(x[:, :11]).y) < 1e-12


def test_tied_vectors_keep_every_system_stable(device):
    layer = layers.build("s4", D, d_state=16).to(device).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 3 * torch.randn_like(parameter)
    A, B, _ = continuous(layer)
    assert (torch.linalg.eigvals(A).real < 0).all()
    A_bar, _ = lti.discretize(A, B, layer.log_step.exp(), "bilinear", structure="dense")
    assert (torch.linalg.eigvals(A_bar).abs() < 1).all()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("init", "tolerance"), [("legs", 1e-6), ("lagt", 1e-3), ("fout", 1e-3)])
def test_a_new_layer_has_hippos_matrix(init, tied, tolerance):
    layer = layers.build("s4", D, d_state=8, init=init, tied=tied)
    A, B, _ = continuous(layer)
    Lambda, P, own, V = lti.nplr(init, 8)
    wanted, write = lti.hippo(init, 8)
    assert distance((V @ A[3].to(V) @ V.mH).real, wanted) < tolerance
    assert distance((V @ B[3].to(V)).real, write) < 1e-6
    steps = layer.log_step.exp()
    assert (steps > 0.999e-3).all() and (steps < 0.1001).all()


def test_the_free_vectors_start_equal_and_are_learned_apart(device):
    layer = layers.build("s4", D, d_state=8, tied=False).to(device).double()
    assert torch.equal(layer.P, layer.Q)
    layer(text(device, 1, 9)).y.square().sum().backward()
    assert not torch.allclose(layer.P.grad, layer.Q.grad)


@pytest.mark.parametrize("step", [1e-6, 1e2])
@pytest.mark.parametrize("rate", [-0.5, -1e-12])
@pytest.mark.parametrize("form", ["convolution", "recurrent", "chunkwise"])
def test_numbers_and_gradients_are_finite_for_any_step_and_rate(device, step, rate, form):
    layer, x = layers.build("s4", D, d_state=8).to(device), text(device, 1, 64, torch.float32)
    with torch.no_grad():
        layer.log_step.fill_(step).log_()
        layer.A_log.fill_(-rate).log_()
    y, state = layer(x, form=form)
    (y.square().sum() + state.memory.square().sum()).backward()
    assert y.isfinite().all() and all(parameter.grad.isfinite().all() for parameter in layer.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 7}, "s4: d_state must be even for conjugate pairs, but came as 7. Use 8"),
        ({"init": "legt"}, "s4: init must be one of legs, lagt, fout, but came as 'legt'"),
        ({"dt_min": 0.0}, "s4: dt_min must be a finite number above 0 and at most 0.1"),
        ({"dt_max": float("inf")}, "s4: dt_max must be a finite number above 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("s4", D, **options)
