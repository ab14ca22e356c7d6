"""Mamba-3 against its recurrence written out, as a complex one, as Mamba-2's, and on parity."""

import math

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv
from lavagna import layers
from sample_layers import D, build, distance, rms, text

FORMS = ["recurrent", "scan", "chunkwise", "parallel", "auto"]


def projected(layer, u):
    """What the recurrence of one sequence (t, d) is given, a token and a head each: dt, A, lambda, angle, x, B, C."""
    (heads, size), (groups, n), rank = layer.values, layer.keys, layer.rank
    dt, rate, trap, angle = (u @ layer.dynamics.weight.T).split(layer.sizes, -1)
    dt = torch.log1p(torch.exp(dt + layer.dt_bias))
    A = -torch.where(rate > 0, 1 + rate, 1 / (1 - rate)).clamp(min=1e-4)
    x = (u @ layer.x.weight.T).reshape(-1, heads, 1, size)
    x = x * (layer.rank_x if rank > 1 else 1)
    B, C = (u @ layer.bc.weight.T).reshape(-1, 2, rank, groups, n).unbind(1)
    B, C = (
        (rms(y, norm.eps) * norm.weight).repeat_interleave(heads // groups, 2).transpose(1, 2) + bias
        for y, norm, bias in ((B, layer.B_norm, layer.B_bias), (C, layer.C_norm, layer.C_bias))
    )
    return dt, A, torch.sigmoid(trap), angle, x, B, C


def turned(y, theta, halves):
    """Vectors (r, n) with their first pairs turned by theta (pairs,), pair by pair."""
    y, n = y.clone(), y.shape[-1]
    for j, angle in enumerate(theta):
        one, other = (j, j + n // 2) if halves else (2 * j, 2 * j + 1)
        a, b = y[:, one].clone(), y[:, other].clone()
        y[:, one], y[:, other] = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return y


def finished(layer, u, y):
    """Reads (t, h, r, v) gated, normalized and summed."""
    gate = (u @ layer.gate.weight.T).reshape(-1, layer.values.count, 1, layer.values.size)
    gate = F.silu(gate * (layer.rank_gate if layer.rank > 1 else 1))
    if layer.norm is not None:
        y = rms(y, layer.norm.eps) * layer.norm.weight.reshape(layer.values.count, 1, -1)
    y = (y * gate * (layer.rank_out if layer.rank > 1 else 1)).sum(2)
    return y.flatten(1) @ layer.out.weight.T


def written_out(layer, u):
    """The recurrence as the paper has it, head by head, both writes at every step, with the library's own trapezoid."""
    dt, A, late, angle, x, B, C = projected(layer, u)
    y = torch.zeros_like(x)
    for h in range(layer.values.count):
        theta, memory, before = torch.zeros_like(angle[0]), 0, 0
        for t in range(len(u)):
            theta = theta + math.pi * torch.tanh(angle[t]) * dt[t, h]
            k, q = (turned(z[t, h], theta, layer.rank > 1) for z in (B, C))
            one = torch.ones_like(A[t, h])[None]
            alpha, beta, gamma = lv.lti.exponential_trapezoid(A[t, h, None], one, dt[t, h], late[t, h])
            now = x[t, h].T @ k
            memory, before = alpha * memory + beta * before + gamma * now, now
            y[t, h] = (memory @ q.T).T + layer.D[h] * x[t, h]
    return finished(layer, u, y)


def as_complex(layer, u):
    """The same with pairs of channels as complex numbers and no rotation: the memory itself turns as it fades."""
    dt, A, late, angle, x, B, C = projected(layer, u)
    B, C = (torch.view_as_complex(z[:, :, 0].unflatten(-1, (-1, 2)).contiguous()) for z in (B, C))
    fade = torch.exp(
        torch.complex((dt * A)[..., None].expand_as(B.real), -math.pi * torch.tanh(angle[:, None]) * dt[..., None])
    )
    y, memory = torch.zeros_like(x), torch.zeros(*layer.values, B.shape[-1], dtype=B.dtype, device=u.device)
    before = memory
    for t in range(len(u)):
        now = x[t, :, 0, :, None] * B[t, :, None]
        waiting = ((1 - late[t]) * dt[t])[:, None, None] * before
        memory, before = fade[t][:, None] * (memory + waiting) + (late[t] * dt[t])[:, None, None] * now, now
        y[t, :, 0] = (memory @ C[t].conj()[..., None]).squeeze(-1).real + layer.D[:, None] * x[t, :, 0]
    return finished(layer, u, y)


@pytest.mark.parametrize("variant", ["mamba3", "mamba3 ranked"])
@pytest.mark.parametrize("form", FORMS)
def test_it_is_its_recurrence(variant, form, device):
    layer, x = build(variant, device), text(device, 2, 7)
    assert distance(layer(x, form=form).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


def whole(device, **options):
    """A layer all of whose channels turn."""
    layer = layers.build("mamba3", D, heads=2, d_state=6, rope_fraction=1.0, **options).to(device).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer


def test_turning_keys_and_queries_is_a_memory_of_complex_numbers(device):
    layer, x = whole(device), text(device, 1, 9)
    assert distance(layer(x).y[0], as_complex(layer, x[0])) < 1e-12


@pytest.mark.parametrize("form", FORMS)
def test_without_turning_and_with_nothing_left_for_the_next_step_it_is_mamba_2(form, device):
    """Lambda 1 and angle 0: `recur` with Mamba-2's scalar decay and write dt x, and the same memory after it."""
    layer, u = whole(device), text(device, 1, 9)
    with torch.no_grad():
        layer.dynamics.weight[layer.sizes[0] * 2 :] = 0
    # sigmoid(40) is one to all digits.
    layer.dynamics.register_forward_hook(
        lambda module, given, y: y + 40 * (torch.arange(y.shape[-1], device=device) // layer.sizes[0] == 2)
    )
    dt, A, _, _, x, B, C = projected(layer, u[0])
    x, B, C = x.squeeze(2), B.squeeze(2), C.squeeze(2)
    a = lv.scalar(A[None, ..., None], step=dt[None, ..., None])
    o, memory = lv.recur(a, C[None], B[None], (dt[..., None] * x)[None], form=form)
    y, state = layer(u, form=form)
    assert distance(y[0], finished(layer, u[0], (o[0] + layer.D[:, None] * x).unsqueeze(2))) < 1e-12
    assert distance(state.memory, memory) < 1e-12


def tracker(device):
    """A hand-set layer: the first token writes, every one turns the memory by half a turn, a zero by none."""
    layer = layers.build("mamba3", 16, heads=1, head_dim=16, d_state=2, rope_fraction=1.0, expand=1).to(device).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.B_bias.fill_(1)
        layer.C_bias.fill_(1)
        # Channel 0 says that a text begins, channel 1 is the bit, channel 2 is always one.
        layer.x.weight[0, 0] = 1
        layer.gate.weight[0, 2] = 1
        layer.out.weight[0, 0] = 1
        layer.dt_bias.fill_(math.log(math.e - 1))
        layer.dynamics.weight[1, 2] = -1e6
        layer.dynamics.weight[2, 2] = 40
        layer.dynamics.weight[3, 1] = 40
    return layer


@pytest.mark.parametrize("angle", [40.0, 0.0])
def test_a_memory_that_turns_tells_parity_and_one_that_only_fades_cannot(angle, device):
    layer, length = tracker(device), 300
    with torch.no_grad():
        layer.dynamics.weight[3, 1] = angle
    u = torch.zeros(1, length, 16, dtype=torch.float64, device=device)
    u[0, 0, 0], u[..., 2] = 1, 1
    u[..., 1] = torch.randint(2, (1, length), device=device)
    sign = layer(u).y[0, :, 0].sign()
    odd = (u[0, :, 1].cumsum(0) - u[0, 0, 1]) % 2
    assert torch.equal(sign, 1 - 2 * odd if angle else torch.ones_like(odd))


def test_float32_keeps_its_angle_after_a_hundred_thousand_steps(device):
    """A memory that hardly fades, read at the end of a text of 1e5 tokens, and the angle that is handed on."""
    torch.manual_seed(1)
    layer = layers.build("mamba3", 16, heads=1, head_dim=2, d_state=4, rope_fraction=1.0).to(device)
    with torch.no_grad():
        layer.dynamics.weight[1] = 0
        layer.dynamics.weight[3:] *= 4
    # Rates of 1e-4: 1 / (1 - x) at x = -1e4.
    layer.dynamics.register_forward_hook(
        lambda module, given, y: y - 1e4 * (torch.arange(y.shape[-1], device=device) == 1)
    )
    x = torch.randn(1, 100_000, 16, device=device)
    y, state = layer(x)
    right, last = layer.double()(x.double())
    assert distance(y[:, -1000:].double(), right[:, -1000:]) < 1e-5
    off = (state.angle - last.angle + math.pi) % (2 * math.pi) - math.pi
    assert off.abs().max() < 1e-5 and (state.angle < 2 * math.pi).all()


def test_a_new_layer_has_the_values_of_the_paper():
    layer = layers.build("mamba3", 256, rank=4)
    sizes = F.softplus(layer.dt_bias)
    assert (sizes > 0.999e-3).all() and (sizes < 0.1001).all()
    assert all((parameter == 1).all() for parameter in (layer.B_bias, layer.C_bias, layer.D, layer.rank_gate))
    assert (layer.rank_x == 0.25).all() and (layer.rank_out == 0.25).all()
    assert layer.sizes == [8, 8, 8, 32]


def test_the_rank_does_not_change_the_size_of_the_memory():
    memories = [layers.build("mamba3", D, rank=rank).initial_state(1).memory for rank in (1, 4)]
    assert memories[0].shape == memories[1].shape


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 4, "groups": 3}, "groups=3 does not divide heads = 4. Use groups="),
        ({"d_state": 5}, "d_state=5 must be even, and rope_fraction=0.5 of it at least 2.* Use d_state=6"),
        ({"d_state": 2}, "d_state=2 must be even, and rope_fraction=0.5 of it at least 2.* Use d_state=4"),
        ({"rope_fraction": 1.5}, "rope_fraction must be a finite number above 0 and at most 1"),
        ({"rank": 0}, "rank must be an int >= 1, but came as 0"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("mamba3", D, **options)
