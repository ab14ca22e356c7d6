"""Limits: what the rules become where a gate or a beta reaches its end, and which step of learning each one is."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lavagna.algebra.dense import matrix
from lavagna.algebra.transition import gated_householder, householder, identity, scalar
from lavagna.dispatch import recur
from lavagna.reproduce.row import Row, row, unprinted

TITLE = "The rules meet in their limits, and each is one step of online regression."
SOURCE = "Yang et al. 2024, arXiv 2406.06484; Yang, Kautz and Hatamizadeh 2025, arXiv 2412.06464."

STEPS, CHANNELS = 24, 8


class _Text(NamedTuple):
    """Random steps of one head: unit keys, values, betas and gates in (0, 1), and a memory that is not empty."""

    keys: Tensor
    values: Tensor
    beta: Tensor
    log_decay: Tensor
    memory: Tensor


def _text(seed: int) -> _Text:
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, 1, STEPS, 1, CHANNELS, dtype=torch.float64, generator=generator)
    beta, gate = torch.rand(2, 1, STEPS, 1, 1, dtype=torch.float64, generator=generator)
    memory = torch.randn(1, 1, CHANNELS, CHANNELS, dtype=torch.float64, generator=generator)
    return _Text(normalize(keys, dim=-1), values, beta, gate.log(), memory)


def _equal(quantity: str, published: float, ours: float | Tensor) -> Row:
    return row("limits", quantity, published, float(ours), within=1e-12)


def _same(quantity: str, one: Tensor, other: Tensor) -> Row:
    return unprinted("limits", f"difference: {quantity}", 0.0, (one - other).abs().max().item(), within=1e-12)


def gates(text: _Text) -> list[Row]:
    """Gated delta with alpha 1 is the delta rule; with beta 0 it fades and writes nothing."""
    keys, values, beta, log_decay, memory = text
    always, never = torch.zeros_like(log_decay), torch.zeros_like(beta)
    gated = recur(gated_householder(always, keys, beta), keys, keys, beta * values, memory)
    delta = recur(householder(keys, beta), keys, keys, beta * values, memory)
    shut = gated_householder(log_decay, keys, never)
    fading = recur(shut, keys, keys, never * values, memory)
    faded = recur(scalar(log_decay), keys, torch.zeros_like(keys), values, memory)
    empty = recur(shut, keys, keys, never * values)
    return [
        _same("gated delta at alpha 1, delta rule", gated.state, delta.state),
        _same("gated delta at beta 0, fading alone", fading.state, faded.state),
        _equal("gated delta at beta 0: written on an empty memory", 0.0, empty.state.abs().max()),
    ]


def descent(text: _Text) -> list[Row]:
    """The delta rule is a gradient step on the squared error, the sum one on the linear loss; where the two agree."""
    key, value, beta, memory = text.keys[:, :1], text.values[:, :1], text.beta[:, :1], text.memory
    told = memory.detach().requires_grad_()
    answer = recur(identity(), key, torch.zeros_like(key), torch.zeros_like(value), told).output
    (squared,) = torch.autograd.grad((answer - value).square().sum() / 2, told, retain_graph=True)
    (linear,) = torch.autograd.grad(-(value * answer).sum(), told)
    delta = recur(householder(key, beta), key, key, beta * value, memory)
    plain = recur(identity(), key, key, value, memory)
    return [
        _same("delta rule, gradient step on the squared error", delta.state, memory - beta * squared),
        _same("sum, gradient step on the linear loss", plain.state, memory - linear),
    ]


def meeting(text: _Text) -> list[Row]:
    """Sum and delta rule agree on orthonormal keys from an empty memory at beta 1, and part at beta 1/2."""
    keys = torch.linalg.qr(text.memory[0, 0]).Q[None, :, None]
    values = text.values[:, :CHANNELS]
    ones = torch.ones_like(text.beta[:, :CHANNELS])
    plain = recur(identity(), keys, keys, values)
    full, half = (recur(householder(keys, beta), keys, keys, beta * values) for beta in (ones, ones / 2))
    ratio = (plain.output[:, 0] / half.output[:, 0]).mean()
    return [
        _same("sum, delta rule, orthonormal keys at beta 1", plain.state, full.state),
        _equal("ratio: sum to delta rule, first token at beta 1/2", 2.0, ratio),
    ]


def spectrum(text: _Text) -> list[Row]:
    """The factor `I - beta k k^T` has one eigenvalue `1 - beta |k|^2` and all others 1; of a unit key it has norm 1."""
    least = 1 - text.beta[0, 0, 0, 0].item()
    factor = matrix(householder(text.keys, text.beta), CHANNELS, 0, 0, 0)
    eigenvalues = torch.linalg.eigvalsh(factor)
    longer = matrix(householder(2**0.5 * text.keys, torch.ones_like(text.beta)), CHANNELS, 0, 0, 0)
    return [
        _equal("rank-one factor: spectral norm", 1.0, torch.linalg.matrix_norm(factor, 2)),
        _equal("rank-one factor: the eigenvalue 1 - beta |k|^2", least, eigenvalues[0]),
        _equal("rank-one factor: its other eigenvalues, the least", 1.0, eigenvalues[1]),
        _equal("rank-one factor: its other eigenvalues, the greatest", 1.0, eigenvalues[-1]),
        _equal("rank-one factor: the eigenvalue at |k|^2 = 2, beta 1", -1.0, torch.linalg.eigvalsh(longer)[0]),
    ]


def pseudo_values(text: _Text) -> list[Row]:
    """The state of the delta rule is `sum_i u_i k_i^T`, with `u_t = beta_t (v_t - sum_{i<t} u_i k_i^T k_t)`."""
    keys, values, beta = text.keys[0, :, 0], text.values[0, :, 0], text.beta[0, :, 0]
    system = torch.eye(STEPS, dtype=torch.float64) + beta * (keys @ keys.T).tril(-1)
    solved = torch.linalg.solve_triangular(system, beta * values, upper=False)[None, :, None]
    sums = recur(identity(), text.keys, text.keys, solved)
    delta = recur(householder(text.keys, text.beta), text.keys, text.keys, text.beta * text.values)
    return [_same("delta state, sum of pseudo-values times keys", delta.state, sums.state)]


def rows(*, seed: int = 0) -> list[Row]:
    """Every limit, on random steps of one head."""
    text = _text(seed)
    return [found for part in (gates, descent, meeting, spectrum, pseudo_values) for found in part(text)]
