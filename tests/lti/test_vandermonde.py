"""Sums of powers against the powers themselves: filters and last states, numbers, gradients, memory."""

import os
import subprocess
import sys

import pytest
import torch

import lavagna as lv
from lavagna.lti.vandermonde import diagonal_kernel, diagonal_state

LENGTHS = pytest.mark.parametrize("length", [*range(12), 63, 64, 65, 1000])


def modes(*shape, device, complex=True, dtype=torch.float64, growth=0.0):
    """Log decays of every kind: weak and strong, slow and fast."""
    real = growth - torch.rand(*shape, dtype=dtype, device=device) * 10 ** torch.linspace(
        -5, 0.5, shape[-1], dtype=dtype, device=device
    )
    return torch.complex(real, 3 * torch.randn_like(real)) if complex else real


def drawn(*shape, device, complex=True, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype.to_complex() if complex else dtype, device=device)


def naive(weights, log_decay, length):
    """Power by power: each is the one before times the decay."""
    power, decay, found = torch.ones_like(log_decay), log_decay.exp(), []
    for _ in range(length):
        found.append((weights * power).sum(-1))
        power = power * decay
    return torch.stack(found, -1) if found else (weights * power)[..., :0]


def difference(x, y):
    assert x.shape == y.shape and x.dtype == y.dtype
    return (x - y).abs().max().item() if x.numel() else 0.0


@LENGTHS
@pytest.mark.parametrize("complex", [True, False])
def test_a_filter_is_the_sum_of_naive_powers(length, complex, device):
    z, weights = (make(3, 5, device=device, complex=complex) for make in (modes, drawn))
    assert difference(diagonal_kernel(weights, z, length), naive(weights, z, length)) < 1e-10


@pytest.mark.parametrize("kinds", [(True, True), (True, False), (False, True), (False, False)])
def test_conjugates_stand_for_the_other_half_of_the_modes(kinds, device):
    weights, z = drawn(2, 4, device=device, complex=kinds[0]), modes(2, 4, device=device, complex=kinds[1])
    whole = diagonal_kernel(torch.cat([weights, weights.conj()], -1), torch.cat([z, z.conj()], -1), 50)
    half = diagonal_kernel(weights, z, 50, conjugates=True)
    assert not half.is_complex() and difference(half, whole.real) < 1e-12


def test_weights_and_decays_broadcast(device):
    z, weights = modes(3, 5, device=device), drawn(2, 3, 5, device=device)
    both = diagonal_kernel(weights, z, 9, conjugates=True)
    assert both.shape == (2, 3, 9)
    assert difference(both[1], diagonal_kernel(weights[1], z, 9, conjugates=True)) < 1e-12


@pytest.mark.parametrize("complex", [True, False])
def test_a_mode_of_no_memory_is_one_at_once_and_then_nothing(complex, device):
    z = torch.tensor([-torch.inf, -1e30, -1e4], dtype=torch.float64, device=device)
    if complex:
        z = torch.complex(z, torch.full_like(z, 2.0))
    z = z.requires_grad_()
    weights = torch.ones_like(z).requires_grad_()
    filters = diagonal_kernel(weights, z, 20)
    assert filters[0] == 3 and not filters[1:].any()
    filters.abs().sum().backward()
    assert torch.isfinite(torch.view_as_real(z.grad) if complex else z.grad).all()


def test_single_precision_keeps_the_phase_of_late_steps(device):
    z, weights = modes(8, device=device), drawn(8, device=device)
    z = torch.complex(z.real * 1e-4, z.imag)
    ours = diagonal_kernel(weights.to(torch.complex64), z, 20000)
    assert ours.dtype == torch.complex64
    right = naive(weights.to(torch.complex64).to(torch.complex128), z, 20000)
    assert (ours - right).abs().max() < 2e-6 * weights.abs().sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_of_half_precision_give_a_filter_of_single(dtype, device):
    weights, z = drawn(5, device=device, complex=False).to(dtype), modes(5, device=device, complex=False)
    ours = diagonal_kernel(weights, z, 30)
    assert ours.dtype == torch.float32
    assert difference(ours.double(), naive(weights.double(), z, 30)) < 1e-5


def test_small_weights_of_growing_modes_neither_vanish_nor_overflow(device):
    z = torch.tensor([0.5, -0.5], dtype=torch.float64, device=device)
    weights = torch.tensor([1e-30, 1.0], device=device)
    ours = diagonal_kernel(weights, z, 300)
    assert (ours / naive(weights.double(), z, 300) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("complex", [True, False])
def test_gradients_of_a_filter_pass_gradcheck(complex, device):
    given = [make(2, 3, device=device, complex=complex) for make in (drawn, modes)]
    for x in given:
        x.requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: diagonal_kernel(*x, 7), given, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *x: diagonal_kernel(*x, 7, conjugates=True), given, fast_mode=True)


@pytest.mark.parametrize("length", [-1, 2.5, True])
def test_a_length_that_is_none_is_refused(length, device):
    with pytest.raises((ValueError, TypeError), match="length"):
        diagonal_kernel(drawn(3, device=device), modes(3, device=device), length)


def stepped(u, z, B, memory):
    """The last state of the recurrence, one step after the other; u (b, h, v, t)."""
    dtype = torch.promote_types(u.dtype, B.dtype)
    v, k = u.movedim(-1, 1).to(dtype), B.expand(u.shape[0], u.shape[-1], *B.shape).to(dtype)
    return lv.recur(lv.diagonal(z[None, None]), torch.zeros_like(k), k, v, memory, form="recurrent").state


@LENGTHS
@pytest.mark.parametrize("complex", [True, False])
def test_the_last_state_is_that_of_the_recurrence(length, complex, device):
    z, B = (make(3, 5, device=device, complex=complex) for make in (modes, drawn))
    u = drawn(2, 3, 4, length, device=device, complex=False)
    memory = drawn(2, 3, 4, 5, device=device, complex=complex)
    assert difference(diagonal_state(u, z, B, memory), stepped(u, z, B, memory)) < 1e-10


@pytest.mark.parametrize("kinds", [(True, False, False), (False, True, False), (False, False, True)])
def test_the_last_state_is_complex_where_anything_is(kinds, device):
    z, B = modes(3, 5, device=device, complex=kinds[0]), drawn(3, 5, device=device, complex=kinds[1])
    u = drawn(2, 3, 4, 30, device=device, complex=kinds[2])
    memory = drawn(2, 3, 4, 5, device=device, complex=False)
    right = stepped(u.to(torch.complex128), z, B, memory.to(torch.complex128))
    assert difference(diagonal_state(u, z, B, memory).to(right.dtype), right) < 1e-10


def test_rows_end_at_their_own_last_step(device):
    z, B = (make(3, 5, device=device) for make in (modes, drawn))
    u, memory = drawn(4, 3, 2, 40, device=device, complex=False), drawn(4, 3, 2, 5, device=device)
    counts = torch.tensor([40, 0, 1, 23], device=device)
    for row, count in enumerate(counts.tolist()):
        u[row, ..., count:] = torch.nan
    ours = diagonal_state(u, z, B, memory, counts)
    for row, count in enumerate(counts.tolist()):
        own = slice(row, row + 1)
        assert difference(ours[own], stepped(u[own, ..., :count], z, B, memory[own])) < 1e-10


def test_the_last_state_of_half_precision_is_summed_in_single(device):
    z, B = modes(3, 5, device=device), drawn(3, 5, device=device).to(torch.complex64)
    u, memory = drawn(2, 3, 1, 500, device=device, complex=False).bfloat16(), drawn(2, 3, 1, 5, device=device)
    ours = diagonal_state(u, z, B, memory.to(torch.complex64))
    assert ours.dtype == torch.complex64
    assert (ours - stepped(u.double(), z, B.to(torch.complex128), memory)).abs().max() < 1e-4


@pytest.mark.parametrize("counts", [None, [3, 7]])
def test_gradients_of_the_last_state_pass_gradcheck(counts, device):
    u, memory = drawn(2, 2, 1, 7, device=device, complex=False), drawn(2, 2, 1, 3, device=device)
    given = [u, modes(2, 3, device=device), drawn(2, 3, device=device), memory]
    counts = None if counts is None else torch.tensor(counts, device=device)
    for x in given:
        x.requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: diagonal_state(*x, counts), given, fast_mode=True)


MEASURE = """
import torch
from memory import peak
from lavagna.lti.vandermonde import diagonal_kernel
shape = (256, 64)
z = torch.complex(-torch.rand(shape), torch.randn(shape)).requires_grad_()
weights = torch.randn(shape, dtype=torch.complex64).requires_grad_()
diagonal_kernel(weights, z, 2, conjugates=True).sum().backward()
before = peak()
diagonal_kernel(weights, z, 16384, conjugates=True).square().sum().backward()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_a_wide_layer_of_long_filters_stays_under_a_gigabyte():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # Something, or nothing would be measured.
    assert 0 < int(done.stdout) < 1e9
