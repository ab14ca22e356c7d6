"""Decays so strong that a factored chunk would overflow, and gates of one that must leave nothing behind."""

import math

import pytest
import torch

import lavagna as lv
from definition import gradients, held
from lavagna.kernels import serves
from sample_layers import D, distance, far, text, ways_of
from transitions import EVERY_WAY, Call, difference, leaves, unit

RULES = {
    "scalar": lambda g, key, beta: lv.scalar(g[..., :1]),
    "diagonal": lambda g, key, beta: lv.diagonal(g),
    "complex": lambda g, key, beta: lv.diagonal(g + 0.3j),
    "scalar with step": lambda g, key, beta: lv.scalar(g[..., :1], step=1.5 * torch.ones_like(g[..., :1])),
    "complex with step": lambda g, key, beta: lv.diagonal(g + 0.3j, step=1.5 * torch.ones_like(g[..., :1])),
    "gated": lambda g, key, beta: lv.gated_householder(g[..., :1], key, beta),
    "gated diagonal": lambda g, key, beta: lv.gated_householder(g, key, beta),
    "dplr": lambda g, key, beta: lv.dplr(g, -beta[..., None] * key, key),
}


def log_decays(wall: float, t: int, device: torch.device) -> torch.Tensor:
    """-30 at every step, or a wall at one of them."""
    g = torch.full((1, t, 1, 2), -30.0 if wall == -30 else -0.01, device=device)
    g[:, 20] = wall
    return g


@pytest.mark.parametrize("wall", [-30.0, -1e4, -math.inf])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize(
    ("form", "backend", "chunk"),
    [
        *(("chunkwise", "torch", size) for size in (16, 32, 64)),
        *(("recurrent", "cpu", None) for _ in range(serves("cpu"))),
    ],
)
@pytest.mark.sampled(2)
def test_a_wall_of_decay_is_safe_in_chunks_of_every_size(form, backend, chunk, read, rule, wall, device):
    t = 64
    one = torch.ones(1, t, 1, 2, device=device)
    key, beta = one / math.sqrt(2), torch.full((1, t, 1), 0.4, device=device)
    a = RULES[rule](log_decays(wall, t, device), key, beta)
    start = torch.ones(1, 1, 1, 2, device=device)
    q, k, v = one.clone(), key if "gated" in rule else one.clone(), one[..., :1].clone()
    if "complex" in rule:
        q, k, v, start = (x.to(torch.complex64) for x in (q, k, v, start))
    some = Call(a, q, k, v, start)
    if "step" in rule and wall == -math.inf:
        safe_with_step(some, read, {"form": form, "backend": backend, "chunk": chunk})
    else:
        held(some, 1e-5, read, form=form, backend=backend, chunk=chunk)


def safe_with_step(some: Call, read: str, options: dict) -> None:
    """Hold a decay of -inf to one of -1e6: the definition's own product of infinity and zero has no gradient."""
    finite = some._replace(a=some.a.map(lambda x: x if x is some.a.step else torch.nan_to_num(x, neginf=-1e6)))
    results = []
    for one, how in ((some, options), (finite, {"form": "recurrent", "backend": "torch"})):
        for x in leaves(one):
            x.requires_grad_()
        result = lv.recur(*one, read=read, **how)
        results.append([*result, *gradients(one, *result)])
    for ours, right in zip(*results, strict=True):
        assert difference(ours, right) < 1e-4


@EVERY_WAY
def test_where_all_is_forgotten_at_once_a_step_reads_its_own_write_or_the_one_before(form, backend, device):
    one = torch.ones(1, 64, 1, 2, device=device)
    a = lv.diagonal(torch.full_like(one, -30.0))
    after = lv.recur(a, one, one, one[..., :1], form=form, backend=backend, chunk=16).output.flatten()
    before = lv.recur(a, one, one, one[..., :1], form=form, backend=backend, chunk=16, read="before").output.flatten()
    assert torch.allclose(after, torch.full_like(after, 2.0), rtol=1e-7)
    assert before[0] == 0 and torch.allclose(before[1:], after[1:], rtol=1e-7)


@EVERY_WAY
@pytest.mark.parametrize("t", [7, 50, 64, 65, 200])
def test_a_gate_of_exactly_one_is_no_gate(form, backend, t, device):
    k, v = unit(1, t, 2, 32, device=device), torch.randn(1, t, 2, 32, device=device)
    q, beta = torch.randn(1, t, 2, 32, device=device), torch.rand(1, t, 2, 1, device=device)
    none = torch.tensor([0.0, -0.0], device=device).repeat(16).expand(1, t, 2, 32)
    ones = (none[..., :1], none[..., 1:2], none)
    pairs = [(lv.householder(k, beta), lv.gated_householder(g, k, beta), beta * v) for g in ones]
    rates = lv.scalar(none[:1, :1, :, :1], step=torch.rand(1, t, 2, 1, device=device))
    gates = [lv.scalar(none[..., :1]), lv.scalar(none[:1, :1, :, :1]), lv.diagonal(none), rates]
    for plain, gated, write in pairs + [(lv.identity(), gate, v) for gate in gates]:
        right, ours = (lv.recur(a, q, k, write, form=form, backend=backend) for a in (plain, gated))
        assert difference(ours.output, right.output) < 1e-6
        assert difference(ours.state, right.state) < 1e-6


@EVERY_WAY
def test_the_error_is_taken_on_the_memory_after_it_has_faded(form, backend, device):
    """A memory of 4 fades to 2, reads 2 where 10 is wanted, and is put right: 10, not 8."""
    one = torch.ones(1, 1, 1, 1, device=device)
    a = lv.gated_householder(one * math.log(0.5), one, one)
    assert lv.recur(a, one, one, 10 * one, 4 * one, form=form, backend=backend).state.item() == pytest.approx(10)


def faded(name: str, wall: float, device: torch.device) -> lv.layers.layer.Layer:
    """A layer whose every step decays by about exp(wall)."""
    layer = lv.layers.build(name, D).to(device)
    with torch.no_grad():
        if name == "gla":
            layer.decay.up.bias.fill_(wall * layer.temperature)
        else:
            layer.A_log.fill_(math.log(-wall))
            layer.dt_bias.fill_(0.5)
    return layer


@pytest.mark.parametrize("wall", [-30.0, -1e4])
@pytest.mark.parametrize("name", ["gla", "gated_delta_net", "mamba", "mamba2"])
def test_a_layer_that_forgets_everything_has_the_gradients_of_its_recurrence(name, wall, device):
    layer, x, weight = faded(name, wall, device), text(device, 2, 70, torch.float32), text(device, 2, 70)
    right, twin = x.double().requires_grad_(), faded(name, wall, device).double()
    twin.load_state_dict(layer.state_dict())
    y, last = twin(right, form="recurrent", backend="torch")
    true = torch.autograd.grad((y * weight).sum(), [right, *twin.parameters()])
    largest = max(grad.abs().max() for grad in true)
    for form, backend in ways_of(layer):
        ours = x.clone().requires_grad_()
        mixed, state = layer(ours, form=form, backend=backend)
        assert distance(mixed.double(), y) < 1e-5 and far(state, last) < 1e-5
        grads = torch.autograd.grad((mixed * weight.float()).sum(), [ours, *layer.parameters()])
        for one, other in zip(grads, true, strict=True):
            assert one.isfinite().all()
            assert (one - other).abs().max() <= 1e-4 * max(other.abs().max(), 1e-2 * largest)
