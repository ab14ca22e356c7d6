"""S4D is its continuous system, discretized and stepped; its spectra, ranges and refusals."""

import math

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, build, distance, text


def dynamics(system):
    """A, B, C (h, k) of a layer's system and its steps (h), complex."""
    if system.real:
        parts = -system.A_log.exp(), system.B, system.C[0]
    else:
        parts = torch.complex(-system.A_log.exp(), system.A_imag), *map(torch.view_as_complex, (system.B, system.C[0]))
    return *(x.to(torch.complex128) for x in parts), system.log_step.exp()


def written_out(layer, u):
    """One sequence (t, d) through each channel's system, with the conjugates written beside their modes."""
    A, B, C, step = dynamics(layer.system)
    y = torch.zeros_like(u)
    for h in range(D):
        a, b, c = (x[h] if layer.system.real else torch.cat([x[h], x[h].conj()]) for x in (A, B, C))
        z = step[h] * a
        if layer.system.discretization == "bilinear":
            Ab, Bb = (1 + z / 2) / (1 - z / 2), step[h] * b / (1 - z / 2)
        elif layer.system.discretization == "euler":
            Ab, Bb = 1 + z, step[h] * b
        else:
            Ab, Bb = z.exp(), (z.exp() - 1) / a * b
        x = torch.zeros_like(b)
        for t in range(len(u)):
            x = Ab * x + Bb * u[t, h]
            y[t, h] = (c @ x).real
    a, b = (F.gelu(y + layer.D * u) @ layer.out.weight.T).chunk(2, -1)
    return a * b.sigmoid()


@pytest.mark.parametrize("variant", ["s4d", "s4d real", "s4d bilinear"])
def test_it_is_its_discretized_system(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    with torch.no_grad():
        assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("init", ["lin", "real"])
def test_under_euler_s_rule_it_is_its_system_too(device, init):
    layer = layers.build("s4d", D, d_state=6, init=init, discretization="euler", dt_min=1e-2, dt_max=0.5)
    layer, x = layer.to(device, torch.float64), text(device, 1, 9)
    with torch.no_grad():
        for form in layer.forms:
            assert distance(layer(x, form=form).y[0], written_out(layer, x[0])) < 1e-12


def test_a_real_system_whose_decay_is_negative_alternates(device):
    """Rate 1 and step 6 under the bilinear rule: decay (1 - 3) / (1 + 3) = -1/2."""
    layer = layers.build("s4d", D, d_state=1, init="real", discretization="bilinear", dt_min=6, dt_max=6)
    layer.to(device).double()
    state = layer.initial_state(1)
    state = state.replace(memory=torch.ones_like(state.memory))
    for form in layer.forms:
        _, after = layer(torch.zeros(1, 3, D, device=device, dtype=torch.float64), state, form=form)
        assert after.memory.dtype == torch.float64 and torch.allclose(after.memory, state.memory * -0.125)


@pytest.mark.parametrize("init", ["legs", "inv", "lin", "real"])
def test_a_new_layer_has_the_spectrum_it_was_asked_for(init):
    layer = layers.build("s4d", D, init=init, d_state=4, dt_min=0.01, dt_max=0.02).double()
    A, B, C, step = dynamics(layer.system)
    wanted = {
        "inv": [-0.5 + 4j / math.pi * (4 / (2 * n + 1) - 1) for n in range(2)],
        "lin": [-0.5 + 1j * math.pi * n for n in range(2)],
        "real": [-1, -2, -3, -4],
    }
    if init == "legs":
        assert torch.allclose(A.real, A.real.new_tensor(-0.5)) and (A.imag > 0).all()
    else:
        assert torch.allclose(A, torch.tensor(wanted[init], dtype=torch.complex128))
        assert (B == 1).all()
    assert (step > 0.00999).all() and (step < 0.02001).all()


def test_readouts_have_unit_variance():
    for init in ("legs", "real"):
        C = layers.build("s4d", 256, init=init).system.C
        assert C.square().mean().item() * (1 if init == "real" else 2) == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 5}, "s4d: d_state must be even for conjugate pairs, but came as 5. Use 6, or init='real'"),
        ({"d_state": 0}, "s4d: d_state must be an int >= 1"),
        ({"init": "random"}, "s4d: init must be one of legs, inv, lin, real, but came as 'random'"),
        ({"discretization": "trapezoid"}, "s4d: discretization must be one of zoh, bilinear, euler"),
        ({"dt_min": 0.2}, "s4d: dt_min must be a finite number above 0 and at most 0.1, but came as 0.2"),
        ({"dt_max": math.inf}, "s4d: dt_max must be a finite number above 0"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("s4d", D, **options)
