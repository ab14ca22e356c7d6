"""Holding a call to the dense float64 definition, forward and backward, and cutting calls in time."""

import torch

import lavagna as lv
from lavagna.algebra import dense
from transitions import Call, difference, leaves


def wide(some: Call) -> Call:
    """The same numbers in float64, as new leaves that want gradients."""
    copies = {id(x): x.detach().to(torch.complex128 if x.is_complex() else torch.float64) for x in leaves(some)}
    for x in copies.values():
        x.requires_grad_()
    return Call(some.a.map(lambda x: copies[id(x)]), *(copies[id(x)] for x in some[1:]))


def gradients(some: Call, output: torch.Tensor, state: torch.Tensor) -> list[torch.Tensor]:
    """Gradients of a fixed random reading of output and state, for every tensor of the call."""
    generator = torch.Generator(device="cpu").manual_seed(1)
    loss = 0.0
    for x in (output, state):
        weight = torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.device)
        loss = loss + (torch.view_as_real(x).sum(-1) if x.is_complex() else x).mul(weight).sum()
    return list(torch.autograd.grad(loss, leaves(some)))


def held(some: Call, tolerance: float, read: str = "after", mask=None, **options) -> None:
    """Assert that a call equals the definition, forward, and backward ten times (in float64 a hundred times) looser."""
    # A form is torch's where no backend is asked for: on a CPU `auto` would take the kernel for it.
    options.setdefault("backend", "torch")
    right = wide(some)
    true = dense.recur(*right, read=read, mask=mask)
    mine = Call(some.a, *some[1:])
    for x in leaves(mine):
        x.requires_grad_()
    ours = lv.recur(*mine, read=read, mask=mask, **options)
    for one, other in zip(ours, true, strict=True):
        assert torch.isfinite(torch.view_as_real(one) if one.is_complex() else one).all()
        assert difference(one, other) <= tolerance
    slack = 100 if tolerance < 1e-8 else 10
    grads, trues = gradients(mine, *ours), gradients(right, *true)
    scale = max(g.abs().max().item() for g in trues)
    for one, other in zip(grads, trues, strict=True):
        assert torch.isfinite(torch.view_as_real(one) if one.is_complex() else one).all()
        assert (one - other).abs().max().item() <= slack * tolerance * max(other.abs().max().item(), 1e-3 * scale)


def between(some: Call, i: int, j: int) -> Call:
    """Steps i to j of a call; parts that are constant in time stay whole, shared tensors stay shared."""
    cut = {id(x): x[:, i:j] if x.shape[1] > 1 or some.q.shape[1] == 1 else x for x in leaves(some)}
    a = some.a.map(lambda x: x if x.shape[1] == 1 != some.q.shape[1] else cut[id(x)])
    return Call(a, *(cut[id(x)] for x in some[1:4]), some.state)
