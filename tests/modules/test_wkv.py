"""WKV against its sums, for keys whose exponentials no float holds."""

import math

import pytest
import torch

from lavagna.forms import FORMS
from lavagna.modules.steps import Steps
from lavagna.modules.wkv import initial_sums, wkv

EVERY_FORM = pytest.mark.parametrize("form", [*FORMS, "auto"])
# Each step's key, for a channel; another channel has their negatives.
KEYS = {
    "mild": [0.3, -1.0, 2.0, 0.5, -0.7, 1.1],
    "100": [100.0, -100, 100, -100, -100, 100],
    "rising": [-100.0, -50, 0, 50, 100, 1000],
    "falling": [1000.0, 100, 50, 0, -50, -100],
    "zero": [0.0] * 8,
}


def weighted(log_decay, u, k, v):
    """The definition for one channel (t,), by a softmax over all that came before: no sum of exponentials is kept."""
    out = []
    for t in range(len(k)):
        log_weight = torch.stack([k[i] + (t - 1 - i) * log_decay for i in range(t)] + [k[t] + u])
        out.append((log_weight.softmax(0) * v[: t + 1]).sum())
    return torch.stack(out)


def inputs(keys, device, dtype):
    k = torch.tensor([keys, [-key for key in keys]], device=device, dtype=torch.float64).T[None]
    v = torch.randn(1, len(keys), 2, device=device, dtype=torch.float64)
    log_decay = torch.tensor([-0.5, -3.0], device=device, dtype=torch.float64)
    u = torch.tensor([0.7, -0.2], device=device, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (log_decay, u, k, v)]


def called(log_decay, u, k, v, start=None, **options):
    steps = Steps("wkv", k, **options)
    start = initial_sums(k.shape[2], steps.sequences, k.device, k.dtype) if start is None else start
    return wkv(log_decay, u, k, v, **start, steps=steps)


@EVERY_FORM
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-11), (torch.float32, 1e-4)])
def test_it_is_the_weighted_average_forward_and_backward(name, form, dtype, tolerance, device):
    ours = inputs(KEYS[name], device, dtype)
    right = [x.detach().double().requires_grad_() for x in ours]
    true = torch.stack([weighted(right[0][c], right[1][c], right[2][0, :, c], right[3][0, :, c]) for c in (0, 1)], -1)
    y = called(*ours, form=form).y
    assert y.isfinite().all() and torch.allclose(y[0].double(), true, rtol=tolerance, atol=tolerance)
    weight = torch.randn_like(true)
    trues = torch.autograd.grad((true * weight).sum(), right)
    for grad, wanted in zip(torch.autograd.grad((y[0] * weight.to(dtype)).sum(), ours), trues, strict=True):
        assert grad.isfinite().all() and torch.allclose(grad.double(), wanted, rtol=tolerance, atol=10 * tolerance)


@EVERY_FORM
def test_sums_are_handed_on_whole_and_gradients_go_with_them(form, device):
    ours = inputs(KEYS["100"] * 2, device, torch.float64)
    log_decay, u, k, v = ours
    whole = called(log_decay, u, k, v, form=form)
    first = called(log_decay, u, k[:, :5], v[:, :5], form=form)
    second = called(log_decay, u, k[:, 5:], v[:, 5:], {"memory": first.memory, "stabilizer": first.stabilizer})
    assert torch.allclose(torch.cat([first.y, second.y], 1), whole.y, atol=1e-12)
    assert torch.allclose(second.memory, whole.memory, atol=1e-12)
    grads = [torch.autograd.grad(y.square().sum(), ours) for y in (whole.y, torch.cat([first.y, second.y], 1))]
    assert all(torch.allclose(x, y, atol=1e-11) for x, y in zip(*grads, strict=True))


@EVERY_FORM
def test_a_key_as_large_as_you_like_moves_all_of_them_alike(form, device):
    log_decay, u, k, v = inputs(KEYS["mild"], device, torch.float64)
    for shift in (1e3, -1e3):
        assert torch.allclose(called(log_decay, u, k + shift, v, form=form).y, called(log_decay, u, k, v).y, atol=1e-11)


@EVERY_FORM
def test_where_nothing_fades_and_all_keys_are_alike_it_is_the_mean(form, device):
    v = torch.randn(2, 300, 3, device=device)
    none = torch.zeros(3, device=device)
    y = called(none, none, torch.full_like(v, -100.0), v, form=form).y
    counts = torch.arange(1, 301, device=device)[:, None]
    assert torch.allclose(y, v.cumsum(1) / counts, atol=1e-5)


def test_the_unit_of_the_sums_given_is_free(device):
    log_decay, u, k, v = inputs(KEYS["mild"], device, torch.float64)
    start = called(log_decay, u, k, v)._asdict()
    del start["y"]
    other = {"memory": start["memory"] * math.exp(-3), "stabilizer": start["stabilizer"] + 3}
    y, again = called(log_decay, u, k, v, start), called(log_decay, u, k, v, other)
    assert torch.allclose(y.y, again.y, atol=1e-12)
