"""Longhorn against its recurrence written out, and against the question that each step answers."""

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, convolved, distance, made, text


def parts(layer, u):
    """x (t, c), k and q (t, n), beta (t, c) and the dose D (t, c) of one text (t, d), in the letters of the paper."""
    x = F.silu(convolved(u @ layer.x.weight.T, layer.conv.weight, layer.conv.bias))
    c, k, q = (x @ layer.ckq.weight.T).split(layer.sizes, -1)
    beta = torch.sigmoid(c @ layer.beta.weight.T + layer.beta.bias)
    return x, k, q, beta, beta / (1 + beta * k.square().sum(-1, keepdim=True))


def written_out(layer, u):
    """The recurrence of one sequence (t, d), channel by channel; and its memory."""
    x, k, q, _, dose = parts(layer, u)
    y, memory = torch.zeros_like(x), torch.zeros(x.shape[1], k.shape[1], dtype=u.dtype, device=u.device)
    for c in range(x.shape[1]):
        s = memory[c]
        for t in range(len(u)):
            kept = s - dose[t, c] * (k[t] * (k[t] @ s) if layer.transition == "exact" else k[t].square() * s)
            s = kept + dose[t, c] * x[t, c] * k[t]
            y[t, c] = s @ q[t] + layer.D[c] * x[t, c]
        memory[c] = s
    return (y * F.silu(u @ layer.gate.weight.T)) @ layer.out.weight.T, memory


OPTIONS = [{}, {"d_state": 3, "rank": 1, "conv_size": 2, "expand": 0.5, "transition": "diagonal"}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_its_recurrence(device, options):
    layer, x = made("longhorn", device, **options), text(device, 2, 7)
    ys, memories = zip(*(written_out(layer, row) for row in x), strict=True)
    for form in layer.forms:
        y, state = layer(x, form=form)
        assert distance(y, torch.stack(ys)) < 1e-12, form
        assert distance(state.memory.squeeze(2), torch.stack(memories)) < 1e-12, form


def test_a_step_is_the_answer_to_its_question(device):
    """The new memory of a channel minimizes |s - s_before|^2 + beta (s . k - x)^2: there its slope is zero."""
    layer, u = made("longhorn", device), text(device, 1, 6)
    x, k, _, beta, _ = parts(layer, u[0])
    before, after = layer(u[:, :5]).state, layer(u).state.memory.squeeze(2)[0].detach().requires_grad_()
    missed = (after @ k[5] - x[5]).square() * beta[5]
    loss = (after - before.memory.squeeze(2)[0]).square().sum() + missed.sum()
    (slope,) = torch.autograd.grad(loss, after)
    assert slope.abs().max() < 1e-12


@pytest.mark.parametrize("transition", ["exact", "diagonal"])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_no_key_is_too_long_for_it(device, transition, scale):
    layer = layers.build("longhorn", D, transition=transition).to(device)
    x = scale * text(device, 1, 300, torch.float32)
    for form in ("recurrent", "chunkwise"):
        y, state = layer(x, form=form)
        assert y.isfinite().all() and state.memory.isfinite().all()
        loss = state.memory.sum()
        assert all(
            g is None or g.isfinite().all() for g in torch.autograd.grad(loss, [*layer.parameters()], allow_unused=True)
        )
    _, k, _, _, dose = parts(layer.double(), x[0].double())
    assert (dose * k.square().sum(-1, keepdim=True) < 1).all()


@pytest.mark.parametrize("transition", ["exact", "diagonal"])
def test_with_nothing_to_write_a_memory_never_grows(device, transition):
    layer, x = made("longhorn", device, transition=transition), text(device, 2, 40)
    _, k, _, _, dose = parts(layer, x[0])
    s = torch.randn(dose.shape[1], k.shape[1], device=device, dtype=torch.float64)
    for t in range(40):
        erased = (s @ k[t])[:, None] * k[t] if transition == "exact" else s * k[t].square()
        kept = s - dose[t, :, None] * erased
        assert (kept.norm(dim=-1) <= s.norm(dim=-1)).all()
        s = kept


def test_a_new_layer_starts_as_published():
    layer = layers.build("longhorn", 64, depth=4)
    assert layer.sizes == [4, 16, 16] and (layer.D == 1).all() and not layer.beta.bias.any()
    assert layer.out.weight.abs().max() <= 128**-0.5 / 2
