"""S4's kernel against the powers of its matrix."""

import math
import os
import subprocess
import sys

import pytest
import torch

from lavagna.lti.cauchy import s4_kernel
from lavagna.lti.nplr import nplr

LENGTHS = [1, 2, 3, 63, 64, 1000]
kinds = pytest.mark.parametrize("kind", ["legs", "legt", "lagt", "fout"])


def system(device, kind, *, n=8):
    """The modes of a basis, a readout that keeps the kernel real, and a step."""
    Lambda, P, B, V = (x.to(device) for x in nplr(kind, n))
    C = torch.randn(n, device=device, dtype=torch.float64).to(V.dtype) @ V
    return Lambda, P, B, C


def naive(Lambda, P, B, C, step, length, Q=None):
    """The kernel by one product after the other, in float64."""
    half = step / 2 * (torch.diag_embed(Lambda) - P.mH @ (P if Q is None else Q))
    eye = torch.eye(half.shape[-1], device=half.device)
    A, x = torch.linalg.solve(eye - half, eye + half), torch.linalg.solve(eye - half, step * B.unsqueeze(-1))
    read = []
    for _ in range(length):
        read.append((C.unsqueeze(-2) @ x).reshape(1))
        x = A @ x
    return torch.cat(read, -1)


def far(ours, right):
    return ((ours - right).abs().max() / right.abs().max()).item()


def halves(*modes):
    """The first half of the modes, whose conjugates are the second."""
    return [x[..., : x.shape[-1] // 2] for x in modes]


@kinds
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("step", [1e-3, 0.1, 100.0])
def test_the_kernel_is_the_powers_of_the_matrix(device, kind, length, step):
    modes = system(device, kind)
    assert far(s4_kernel(*modes, step, length), naive(*modes, step, length)) < 1e-12


@pytest.mark.parametrize("length", LENGTHS)
def test_p_and_q_may_differ(device, length):
    Lambda, P, B, C = system(device, "legt")
    Q = P + 0.01 * torch.randn_like(P)
    assert far(s4_kernel(Lambda, P, B, C, 0.01, length, Q=Q), naive(Lambda, P, B, C, 0.01, length, Q)) < 1e-12


@kinds
@pytest.mark.parametrize("length", [*LENGTHS, 777])
def test_half_the_modes_give_the_kernel_of_all(device, kind, length):
    modes = system(device, kind)
    half = halves(*modes)
    ours = s4_kernel(*half, 0.05, length, conjugates=True)
    assert ours.dtype == torch.float64 and far(ours, s4_kernel(*modes, 0.05, length).real) < 1e-12


@pytest.mark.parametrize("length", [1, 64, 1023, 1024, 16384])
def test_float32_is_off_by_no_more_than_its_last_digits(device, length):
    Lambda, P, B, C = (x.to(torch.complex64) for x in halves(*system(device, "legs", n=64)))
    step = torch.tensor([1e-3, 0.01, 0.1], device=device)
    modes = [x.expand(3, *x.shape) for x in (Lambda, P, B, C)]
    ours = s4_kernel(*modes, step, length, conjugates=True)
    right = s4_kernel(*(x.to(torch.complex128) for x in modes), step.double(), length, conjugates=True)
    assert ours.dtype == torch.float32
    assert all(far(one.double(), other) < 2e-6 for one, other in zip(ours, right, strict=True))


def test_a_long_kernel_is_the_naive_one(device):
    modes = system(device, "legs", n=32)
    assert far(s4_kernel(*modes, 1e-3, 16384), naive(*modes, 1e-3, 16384)) < 1e-11


def test_a_shorter_kernel_is_the_beginning_of_a_longer(device):
    modes = system(device, "lagt")
    assert far(s4_kernel(*modes, 0.01, 37), s4_kernel(*modes, 0.01, 100)[:37]) < 1e-12


@pytest.mark.parametrize("conjugates", [False, True])
def test_gradients_are_those_of_the_numbers(device, conjugates):
    Lambda, B, C = torch.randn(3, 2, 3, device=device, dtype=torch.complex128)
    P, Q = torch.randn(2, 2, 2, 3, device=device, dtype=torch.complex128)
    step = torch.tensor([0.1, 0.7], device=device, dtype=torch.float64)
    Lambda = torch.complex(-Lambda.real.abs(), Lambda.imag)

    def kernel(Lambda, P, Q, B, C, step):
        return s4_kernel(Lambda, P, B, C, step, 7, Q=Q, conjugates=conjugates)

    assert torch.autograd.gradcheck(kernel, [x.requires_grad_() for x in (Lambda, P, Q, B, C, step)])


@pytest.mark.parametrize("length", [64, 65])
@pytest.mark.parametrize("real", [0.0, -1e-9, -0.5])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_kernel_and_gradients_are_finite_for_any_step_and_modes_on_the_axis(device, length, real, dtype):
    imaginary = torch.tensor([0.0, 1.0, math.pi, 50.0], device=device)
    Lambda = torch.complex(torch.full_like(imaginary, real), imaginary).to(dtype)
    P, B, C = (torch.ones(*rows, 4, device=device, dtype=dtype) for rows in ((1,), (), ()))
    for step in (1e-6, 1e-3, 1.0, 2 * math.tan(math.pi / 64), 1e2):
        inputs = [x.clone().requires_grad_() for x in (Lambda, P, B, C)]
        size = torch.tensor(step, device=device, requires_grad=True)
        kernel = s4_kernel(*inputs, size, length, conjugates=True)
        grads = torch.autograd.grad(kernel.square().sum(), [*inputs, size])
        assert all(x.isfinite().all() for x in (kernel, *grads))


def test_axes_before_the_modes_broadcast(device):
    Lambda, P, B, C = system(device, "legs")
    many = torch.stack([C, 2 * C, -C])
    steps = torch.tensor([[0.1], [0.2]], device=device, dtype=torch.float64)
    ours = s4_kernel(Lambda, P, B, many, steps, 9)
    for i, j in ((0, 1), (1, 2)):
        assert far(ours[i, j], s4_kernel(Lambda, P, B, many[j], steps[i, 0], 9)) < 1e-12


@pytest.mark.parametrize("conjugates", [False, True])
def test_a_kernel_of_no_steps_is_empty(device, conjugates):
    assert s4_kernel(*system(device, "legs"), 0.1, 0, conjugates=conjugates).shape == (0,)


def test_a_negative_length_is_refused(device):
    with pytest.raises(ValueError, match="s4_kernel: length must be an int >= 0, but came as -3"):
        s4_kernel(*system(device, "legs"), 0.1, -3)


def test_shapes_that_do_not_fit_are_named(device):
    Lambda, P, B, C = system(device, "legs")
    for modes in ((Lambda, P[0], B, C), (Lambda, P[:, :3], B, C), (Lambda, P, B[:3], C)):
        with pytest.raises(ValueError, match=r"s4_kernel: Lambda, B and C must be \(.., n\), P and Q \(.., r, n\)"):
            s4_kernel(*modes, 0.1, 3)


MEASURE = """
import sys, torch
from memory import peak
from lavagna.lti.cauchy import s4_kernel
parts = torch.randn(3, 256, 32, dtype=torch.complex64)
Lambda = torch.complex(-parts[0].real.abs(), parts[0].imag).requires_grad_()
P, B, C = (x.clone().requires_grad_() for x in (parts[:, :, None][0], *parts[1:]))
step = torch.linspace(1e-3, 0.1, 256)
s4_kernel(Lambda, P, B, C, step, 2, conjugates=True).sum().backward()
before = peak()
s4_kernel(Lambda, P, B, C, step, int(sys.argv[1]), conjugates=True).square().sum().backward()
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
@pytest.mark.parametrize("length", [4096, pytest.param(16384, marks=pytest.mark.slow)])
def test_a_wide_layer_of_long_filters_never_holds_all_terms(length):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", MEASURE, str(length)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # All terms of the sums are 256 channels times 64 modes times half as many nodes as steps, in complex128.
    assert int(done.stdout) < min(256 * 64 * length / 2 * 16, 1e9)


def test_leading_axes_that_do_not_broadcast_are_named(device):
    Lambda, P, B, C = system(device, "legs")
    with pytest.raises(
        ValueError, match=r"s4_kernel: the leading axes .* must broadcast, but came as .*\(2,\).*\(3,\)"
    ):
        s4_kernel(Lambda, P, B, torch.stack([C, C]), torch.ones(3, device=device), 5)
