"""Exponential gates: what they do to a memory, against plain loops over numbers that no float would hold."""

from itertools import pairwise

import pytest
import torch

from lavagna.modules.exponential import NOTHING, exponential_gates
from lavagna.modules.steps import Steps
from sample_layers import distance

INF = float("inf")
LEAST = [NOTHING, 0.0]
GATES = {
    "mild": ([-0.1, -2.0, -0.5, -1e-3, -3.0, -0.2, -0.7], [0.3, -1.0, 2.0, -0.5, 0.0, 1.0, -2.0]),
    "200": ([-200.0, -1e-9, -200, -1e-9, -200, -1e-9, -1e-9], [200.0, -200, -200, 200, -200, -200, 200]),
    "1000": ([-1000.0, 0, -1000, 0, -1000, -1000, 0], [-1000.0, 1000, -1000, -1000, 1000, -1000, 1000]),
    "resets": ([-INF, -0.1, -INF, -INF, -0.1, -0.1, -INF], [1.0, -3.0, 200, -1000, 1.0, -200, 0.0]),
    "nothing written": ([-0.1, -INF, -0.1, -0.1, -0.5, -1.0, 0], [-INF, -INF, -INF, 2.0, -INF, -INF, -INF]),
}


def gates_of(name, device, dtype=torch.float64):
    """One row, one head, two channels that differ."""
    forget, given = (torch.tensor(x, device=device, dtype=dtype)[None, :, None, None] for x in GATES[name])
    return torch.cat([forget, forget / 2], 3), torch.cat([given, given - 1], 3)


def maxima(forget, given, start, least):
    """The stabilizer by its recursion, one number at a time."""
    after, m = [], start
    for f, i in zip(forget.tolist(), given.tolist(), strict=True):
        m = max(m + f, i, least)
        after.append(m)
    return after


def memory(gates, writes, start, read=0):
    """Every stabilized memory of a channel (t,), written out."""
    memories, M = [], start
    for log_decay, write, w in zip(gates.log_decay[0, :, 0, read], gates.write[0, :, 0, read], writes, strict=True):
        M = log_decay.exp() * M + write * w
        memories.append(M)
    return torch.stack(memories)


@pytest.mark.parametrize("least", LEAST)
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_stabilizers_are_those_of_the_recursion_and_no_weight_is_above_one(name, least, dtype, tolerance, device):
    forget, given = gates_of(name, device, dtype)
    start = torch.tensor([[[5.0, 0.0]]], device=device, dtype=dtype)
    gates = exponential_gates(forget, given, start, Steps("gates", given), least=least)
    for c in range(2):
        right = maxima(forget[0, :, 0, c], given[0, :, 0, c], start[0, 0, c].item(), least)
        right = torch.tensor(right, dtype=torch.float64, device=device)
        assert torch.allclose(gates.after[0, :, 0, c].double(), right, rtol=tolerance)
        assert torch.equal(gates.before[0, 1:, 0, c], gates.after[0, :-1, 0, c])
    assert torch.equal(gates.before[:, 0], start) and torch.equal(gates.last, gates.after[:, -1])
    assert (gates.log_decay <= tolerance * 1000).all() and (gates.write <= 1).all()
    assert not gates.log_decay.isnan().any() and gates.write.isfinite().all()


@pytest.mark.parametrize("least", LEAST)
@pytest.mark.parametrize("name", GATES)
def test_a_ratio_of_two_memories_is_that_of_the_unbounded_ones(name, least, device):
    """An average weighted by e^(log i + sum of log f): weights over the greatest, so exact whatever the gates."""
    forget, given = gates_of(name, device)
    writes = torch.randn(7, dtype=torch.float64, device=device)
    start = torch.full((1, 1, 2), least, dtype=torch.float64, device=device)
    gates = exponential_gates(forget, given, start, Steps("gates", given), least=least)
    ours = memory(gates, writes, 0.0), memory(gates, torch.ones_like(writes), 0.0)
    for t in range(7):
        logs = torch.stack([given[0, s, 0, 0] + forget[0, s + 1 : t + 1, 0, 0].sum() for s in range(t + 1)])
        weights = (logs - gates.after[0, t, 0, 0]).exp()
        assert torch.allclose(ours[0][t], weights @ writes[: t + 1], atol=1e-12)
        assert torch.allclose(ours[1][t], weights.sum(), atol=1e-12)


def test_a_stabilizer_that_is_not_least_keeps_e_to_minus_it_at_most_one(device):
    forget, given = gates_of("200", device, torch.float32)
    gates = exponential_gates(forget, given - 500, torch.zeros(1, 1, 2, device=device), Steps("g", given), least=0.0)
    assert (gates.after == 0).all() and (gates.last == 0).all()


@pytest.mark.parametrize("least", LEAST)
@pytest.mark.parametrize("name", GATES)
def test_any_cut_gives_the_same_memory(name, least, device):
    forget, given = gates_of(name, device)
    writes = torch.randn(7, dtype=torch.float64, device=device)
    start = torch.full((1, 1, 2), 3.0, dtype=torch.float64, device=device)
    whole = exponential_gates(forget, given, start, Steps("gates", given), least=least)
    right = memory(whole, writes, torch.tensor(2.0, device=device, dtype=torch.float64))
    m, M, met = start, torch.tensor(2.0, device=device, dtype=torch.float64), []
    for begin, end in pairwise([0, 0, 3, 4, 7]):
        part = given[:, begin:end]
        gates = exponential_gates(forget[:, begin:end], part, m, Steps("gates", part), least=least)
        m = gates.last
        if begin < end:
            met.append(memory(gates, writes[begin:end], M))
            M = met[-1][-1]
    assert torch.allclose(torch.cat(met), right, rtol=1e-12) and torch.allclose(m, whole.last, rtol=1e-12)


def test_masked_steps_are_no_ops_whatever_they_hold(device):
    forget, given = gates_of("mild", device)
    forget, given = forget.expand(2, -1, -1, -1).clone(), given.expand(2, -1, -1, -1).clone()
    mask = torch.tensor([[0, 1, 1, 0, 0, 1, 0], [0] * 7], device=device).bool()
    forget[~mask], given[~mask] = torch.nan, torch.nan
    start = torch.tensor([[[1.5, -2.0]], [[7.0, 3.0]]], device=device, dtype=torch.float64).requires_grad_()
    gates = exponential_gates(forget, given, start, Steps("gates", given, mask=mask))
    real = mask[0]
    alone = exponential_gates(forget[:1, real], given[:1, real], start[:1], Steps("gates", given[:1, real]))
    for ours, right in zip(gates[:4], alone[:4], strict=True):
        assert torch.equal(ours[0, real], right[0])
    assert torch.equal(gates.last[:1], alone.last) and torch.equal(gates.last[1], start[1])
    # Where nothing is real the stabilizer goes through as it is, and its gradient with it.
    (grad,) = torch.autograd.grad(gates.last.sum(), start)
    assert grad[1].tolist() == [[1, 1]]


def test_packed_sequences_start_from_their_own_stabilizers(device):
    forget, given = gates_of("mild", device)
    start = torch.tensor([[[1.5, -2.0]], [[7.0, 3.0]], [[0.5, 9.0]]], device=device, dtype=torch.float64)
    gates = exponential_gates(forget, given, start, Steps("gates", given, cu_seqlens=[0, 3, 3, 7]))
    for row, (begin, end) in enumerate([(0, 3), (3, 3), (3, 7)]):
        part = given[:, begin:end]
        alone = exponential_gates(forget[:, begin:end], part, start[row : row + 1], Steps("gates", part))
        assert torch.equal(gates.last[row], alone.last[0])
        for ours, right in zip(gates[:4], alone[:4], strict=True):
            assert torch.equal(ours[:, begin:end], right)


@pytest.mark.parametrize("least", LEAST)
def test_gradients_of_what_does_not_depend_on_the_unit_are_those_of_the_definition(least, device):
    """S over e^m and m together are S: its gradient is the plain recurrence's, through the given memory and m too."""
    forget, given = (x[..., :1].requires_grad_() for x in gates_of("mild", device))
    M0, m0 = (torch.tensor(x, dtype=torch.float64, device=device, requires_grad=True) for x in (0.7, 0.4))
    writes = torch.randn(7, dtype=torch.float64, device=device).requires_grad_()
    wanted = [forget, given, M0, m0, writes]
    gates = exponential_gates(forget, given, m0.reshape(1, 1, 1), Steps("gates", given), least=least)
    ours = memory(gates, writes, M0) * gates.after[0, :, 0, 0].exp()
    S, right = M0 * m0.exp(), []
    for t in range(7):
        S = forget[0, t, 0, 0].exp() * S + given[0, t, 0, 0].exp() * writes[t]
        right.append(S)
    right = torch.stack(right)
    assert torch.allclose(ours, right, rtol=1e-12)
    weight = torch.randn_like(right)
    grads = (torch.autograd.grad((x * weight).sum(), wanted) for x in (ours, right))
    assert all(distance(one, other) < 1e-12 for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize("name", GATES)
def test_gradients_are_finite_for_all_gates(name, device):
    forget, given = (x.requires_grad_() for x in gates_of(name, device, torch.float32))
    start = torch.zeros(1, 1, 2, device=device, requires_grad=True)
    gates = exponential_gates(forget, given, start, Steps("gates", given), least=0.0)
    M = memory(gates, torch.ones(7, device=device), torch.ones((), device=device))
    total = (M / torch.maximum(M.abs(), (-gates.after[0, :, 0, 0]).exp())).sum()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(total, [forget, given, start]))


def test_a_constant_decay_is_spread_over_the_steps_and_its_gradient_summed(device):
    forget = torch.tensor([-0.5], device=device, dtype=torch.float64).reshape(1, 1, 1, 1).requires_grad_()
    given = torch.randn(2, 9, 3, 4, device=device, dtype=torch.float64)
    start = torch.zeros(2, 3, 4, device=device, dtype=torch.float64)
    gates = exponential_gates(forget, given, start, Steps("gates", given))
    spread = exponential_gates(forget.expand(2, 9, 3, 4), given, start, Steps("gates", given))
    assert all(map(torch.equal, gates, spread))
    (grad,) = torch.autograd.grad(gates.log_decay.sum(), forget)
    assert grad.item() == 2 * 9 * 3 * 4


def test_a_hundred_thousand_steps_stay_exact_in_float32(device):
    """A slow decay under a large first gate, whose steps are smaller than the last digit of the stabilizer."""
    length = 100_000
    forget = torch.full((1, length, 1, 1), -1e-4, device=device)
    given = torch.full((1, length, 1, 1), -torch.inf, device=device)
    given[:, 0] = 1000.0
    gates = exponential_gates(forget, given, torch.zeros(1, 1, 1, device=device), Steps("gates", given))
    # The memory over e^m and m in one number, as it is a product of decays.
    log = gates.log_decay[:, 1:].double().sum() + gates.last.double().sum()
    assert abs(log.item() - (1000 + forget[:, 1:].double().sum().item())) < 1e-5


def test_no_steps_give_a_copy_of_the_stabilizer(device):
    given = torch.zeros(2, 0, 3, 1, device=device)
    start = torch.randn(2, 3, 1, device=device)
    gates = exponential_gates(given, given, start, Steps("gates", given))
    assert torch.equal(gates.last, start) and gates.last.data_ptr() != start.data_ptr()
    assert gates.write.shape == given.shape
