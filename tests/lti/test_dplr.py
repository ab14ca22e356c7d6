"""Discrete systems of a diagonal plus low rank, against dense matrices."""

import pytest
import torch

from lavagna.lti.dplr import after, bilinear, flat, flat_reader, free_response, last_state, powers, unflat
from lavagna.lti.exponential import log_bilinear

pytestmark = pytest.mark.parametrize("conjugates", [False, True], ids=["all modes", "half the modes"])
ranks = pytest.mark.parametrize("rank", [1, 2])


def modes(device, *, rank=1, n=6, h=3):
    """Lambda, P, B, C and step of h stable systems."""
    pairs = torch.randn(h, n, device=device, dtype=torch.complex128)
    Lambda = torch.complex(-pairs.real.abs(), 3 * pairs.imag)
    P, vectors = (torch.randn(k, h, n, device=device, dtype=torch.complex128) for k in (rank, 2))
    return Lambda, P.transpose(0, 1), *vectors, torch.tensor([0.03, 0.1, 2.0], device=device, dtype=torch.float64)[:h]


def whole(x, conjugates):
    """All the modes, those implied too."""
    return torch.cat([x, x.conj()], -1) if conjugates else x


def dense(Lambda, P, B, step, conjugates):
    """The matrix and the vector of a step, by solving."""
    Lambda, P, B = (whole(x, conjugates) for x in (Lambda, P, B))
    half = step[:, None, None] / 2 * (torch.diag_embed(Lambda) - P.mH @ P)
    eye = torch.eye(half.shape[-1], device=half.device)
    return torch.linalg.solve(eye - half, eye + half), torch.linalg.solve(eye - half, step[:, None] * B)


def steps(system):
    """The powers of a system, and its write, in plain numbers."""
    return powers(system, 40), flat(system.write, conjugates=system.conjugates)


@ranks
def test_a_step_is_the_bilinear_rule(device, conjugates, rank):
    Lambda, P, B, _, step = modes(device, rank=rank)
    A, write = dense(Lambda, P, B, step, conjugates)
    system = bilinear(Lambda, P, B, step, conjugates=conjugates)
    decay, left, right, wrote = (whole(x, conjugates) for x in system[:4])
    assert torch.allclose(torch.diag_embed(decay) + left.mT @ right, A, rtol=1e-12, atol=1e-13)
    assert torch.allclose(wrote, write, rtol=1e-12, atol=1e-13)
    assert torch.allclose(whole(log_bilinear(step[:, None] * Lambda), conjugates).exp(), decay, rtol=1e-12, atol=0)


@ranks
def test_each_power_is_the_square_of_the_one_before(device, conjugates, rank):
    Lambda, P, B, C, step = modes(device, rank=rank)
    A, _ = dense(Lambda, P, B, step, conjugates)
    system = bilinear(Lambda, P, B, step, conjugates=conjugates)
    x, reader = B.unsqueeze(-2), C.unsqueeze(-2)
    for power in powers(system, 60):
        ours = unflat(power(flat(x, conjugates=conjugates)))
        assert torch.allclose(whole(ours, conjugates), whole(x, conjugates) @ A.mT, rtol=1e-11, atol=1e-12)
        read = power.transposed(flat_reader(reader, conjugates=conjugates))
        right = (whole(reader, conjugates) @ A)[..., : Lambda.shape[-1]]
        assert torch.allclose(read, flat_reader(right, conjugates=conjugates), rtol=1e-11, atol=1e-12)
        A = A @ A


@pytest.mark.parametrize("count", [0, 1, 7, 8, 61])
def test_any_number_of_steps_is_so_many_products(device, conjugates, count):
    Lambda, P, B, _, step = modes(device)
    A, _ = dense(Lambda, P, B, step, conjugates)
    found, x = powers(bilinear(Lambda, P, B, step, conjugates=conjugates), 60), flat(B, conjugates=conjugates)
    right = torch.linalg.matrix_power(A, count) @ whole(B, conjugates).unsqueeze(-1)
    ours = whole(unflat(after(found, x.unsqueeze(-2), count)), conjugates).mT
    assert torch.allclose(ours, right, rtol=1e-11, atol=1e-12)


def recurrence(A, write, C, state, u):
    """What is read at each step, and the last state, one step after the other: state (h, q, n), u (h, q, t)."""
    read = []
    for l in range(u.shape[-1]):
        state = state @ A.mT + u[..., l, None] * write.unsqueeze(-2)
        read.append((state * C.unsqueeze(-2)).sum(-1))
    return torch.stack(read, -1), state


@ranks
@pytest.mark.parametrize("length", [1, 2, 5, 8, 40])
def test_a_state_left_alone_is_read_as_the_recurrence_reads_it(device, conjugates, rank, length):
    Lambda, P, B, C, step = modes(device, rank=rank)
    system, (A, write) = bilinear(Lambda, P, B, step, conjugates=conjugates), dense(Lambda, P, B, step, conjugates)
    state = torch.randn(3, 2, 6, device=device, dtype=torch.complex128)
    ours = free_response(
        steps(system)[0], flat_reader(C, conjugates=conjugates), flat(state, conjugates=conjugates), length
    )
    silence = torch.zeros(3, 2, length, device=device, dtype=torch.complex128)
    right, _ = recurrence(A, write, whole(C, conjugates), whole(state, conjugates), silence)
    assert torch.allclose(ours.to(right.dtype), right, rtol=1e-11, atol=1e-12)


@ranks
@pytest.mark.parametrize("length", [1, 2, 5, 8, 40])
@pytest.mark.parametrize("counted", [False, True])
def test_the_last_state_is_the_recurrences(device, conjugates, rank, length, counted):
    Lambda, P, B, C, step = modes(device, rank=rank)
    system, (A, write) = bilinear(Lambda, P, B, step, conjugates=conjugates), dense(Lambda, P, B, step, conjugates)
    state = torch.randn(3, 4, 6, device=device, dtype=torch.complex128)
    u = torch.randn(3, 4, length, device=device, dtype=torch.float64)
    counts = torch.tensor([0, length, (length + 1) // 2, length // 3], device=device) if counted else None
    if counts is not None:
        u = u.masked_fill(torch.arange(length, device=device) >= counts[:, None], 0)
    found, wrote = steps(system)
    ours = last_state(found, wrote, u.to(wrote.dtype), flat(state, conjugates=conjugates), counts)
    for row, count in enumerate([length] * 4 if counts is None else counts.tolist()):
        start = whole(state[:, row : row + 1], conjugates)
        right = recurrence(A, write, whole(C, conjugates), start, u[:, row : row + 1, :count])[1] if count else start
        assert torch.allclose(whole(unflat(ours[:, row : row + 1]), conjugates), right, rtol=1e-11, atol=1e-12)


def test_gradients_reach_the_modes_the_step_the_inputs_and_the_state(device, conjugates):
    Lambda, P, B, C, step = modes(device, rank=2, n=2, h=2)
    state = torch.randn(2, 3, 2, device=device, dtype=torch.complex128)
    u = torch.randn(2, 3, 5, device=device, dtype=torch.float64)
    counts = torch.tensor([5, 0, 2], device=device)
    u = u.masked_fill(torch.arange(5, device=device) >= counts[:, None], 0)

    def response(Lambda, P, Q, B, C, step, state, u):
        system = bilinear(Lambda, P, B, step, Q=Q, conjugates=conjugates)
        found, start = powers(system, 5), flat(state, conjugates=conjugates)
        read = free_response(found, flat_reader(C, conjugates=conjugates), start, 5)
        wrote = flat(system.write, conjugates=conjugates)
        return read, last_state(found, wrote, u.to(wrote.dtype), start, counts)

    inputs = [x.detach().clone().requires_grad_() for x in (Lambda, P, P, B, C, step, state, u)]
    assert torch.autograd.gradcheck(response, inputs)
