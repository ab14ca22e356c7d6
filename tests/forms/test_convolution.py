"""The long convolution against the sum that defines it: lengths, cuts, numbers, gradients, causality, cost."""

import os
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from lavagna.forms.convolution import METHODS, convolution, convolve, fast_length

SOURCE = Path(__file__).parents[2] / "src"
EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
KINDS = pytest.mark.parametrize("kinds", [(False, False), (True, False), (False, True), (True, True)])


def defined(u, kernel, tail=None):
    """`sum over j of K_j u_{t-j}`, one tap after the other."""
    past = kernel.shape[-1] - 1
    before = u.new_zeros(*u.shape[:-1], past) if tail is None else tail
    padded = torch.cat([before, u], -1)
    return sum(kernel[..., j : j + 1] * padded[..., past - j : past - j + u.shape[-1]] for j in range(past + 1))


def drawn(*shape, device, complex=False, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype.to_complex() if complex else dtype, device=device)


def largest(x):
    return x.abs().max().item() if x.numel() else 0.0


@EVERY_METHOD
@KINDS
@pytest.mark.parametrize(("t", "length"), [(1, 1), (1, 9), (9, 1), (7, 7), (70, 33), (33, 70), (130, 200), (200, 67)])
def test_a_method_is_the_defining_sum(method, kinds, t, length, device):
    u = drawn(2, 3, t, device=device, complex=kinds[0])
    kernel = drawn(3, length, device=device, complex=kinds[1])
    output = convolve(u, kernel, method=method)
    assert output.dtype == torch.promote_types(u.dtype, kernel.dtype)
    assert largest(output - defined(u, kernel)) < 1e-12


@EVERY_METHOD
@pytest.mark.parametrize(
    ("own", "filters"), [((4,), ()), ((), (4,)), ((2, 1, 3), (5, 1)), ((2, 3), (2, 3)), ((1, 3), (2, 3)), ((), ())]
)
def test_the_axes_before_time_broadcast(method, own, filters, device):
    u, kernel = drawn(*own, 5, device=device), drawn(*filters, 4, device=device)
    tail = drawn(*own, 3, device=device)
    assert largest(convolve(u, kernel, method=method) - defined(u, kernel)) < 1e-12
    output, rest = convolution(u, kernel, tail, method=method)
    assert output.shape[:-1] == torch.broadcast_shapes(own, filters) and rest.shape == tail.shape
    assert largest(output - defined(u, kernel, tail)) < 1e-12


@given(data=st.data())
def test_a_stream_cut_anywhere_equals_the_whole(data, device):
    t, length = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 150))
    method = data.draw(st.sampled_from((*METHODS, "auto")))
    complex = data.draw(st.booleans())
    u, kernel = drawn(2, t, device=device, complex=complex), drawn(2, length, device=device)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, t), max_size=5))), t]
    tail, pieces = None, []
    for start, end in zip(cuts, cuts[1:], strict=False):
        output, tail = convolution(u[:, start:end], kernel, tail, method=method)
        pieces.append(output)
    assert largest(torch.cat(pieces, -1) - defined(u, kernel)) < 1e-12
    assert torch.equal(tail, torch.cat([u.new_zeros(2, length), u], -1)[:, t + 1 :])


def test_token_by_token_equals_the_whole(device):
    u, kernel = drawn(3, 40, device=device), drawn(3, 16, device=device)
    tail, steps = None, []
    for t in range(40):
        step, tail = convolution(u[:, t : t + 1], kernel, tail)
        steps.append(step)
    assert largest(torch.cat(steps, -1) - convolve(u, kernel, method="fft")) < 1e-12


@EVERY_METHOD
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_half_precision_is_summed_in_single(method, dtype, device):
    u, kernel = drawn(2, 3000, device=device).to(dtype), drawn(2, 3000, device=device).to(dtype)
    output = convolve(u, kernel, method=method)
    right = convolve(u.double(), kernel.double())
    assert output.dtype == dtype
    assert largest(output.double() - right) <= (1e-5 + torch.finfo(dtype).eps) * largest(right)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert torch.equal(convolve(u, kernel, method=method), output)


def test_the_output_has_the_dtype_of_the_input(device):
    u, kernel = drawn(9, device=device).bfloat16(), drawn(9, device=device)
    assert convolve(u, kernel).dtype == torch.bfloat16
    assert convolve(u, drawn(9, device=device, complex=True)).dtype == torch.complex128
    assert convolve(drawn(9, device=device).float(), kernel).dtype == torch.float32
    assert torch.equal(convolve(u, kernel), convolve(u.double(), kernel).bfloat16())


@pytest.mark.parametrize("method", METHODS)
def test_a_hundred_thousand_steps_do_not_wrap_around(method, device):
    t = 100_000 if method == "fft" else 5_001
    u, kernel = torch.zeros(t, device=device), drawn(t, device=device, dtype=torch.float32)
    u[-3] = 1
    output = convolve(u, kernel, method=method)
    assert largest(output[:-3]) < 1e-5 and largest(output[-3:] - kernel[:3]) < 1e-5
    tail = torch.zeros(t - 1, device=device)
    tail[-1] = 1
    late = convolution(torch.zeros(4, device=device), kernel, tail, method=method)
    assert largest(late.output - kernel[1:5]) < 1e-5


@pytest.mark.parametrize(("t", "length"), [(64, 64), (1000, 16), (2, 2048), (50, 300), (300, 50), (200, 200)])
def test_the_direct_method_is_causal_to_the_last_bit(t, length, device):
    u, kernel = drawn(2, t, device=device, dtype=torch.float32), drawn(2, length, device=device, dtype=torch.float32)
    before = convolve(u, kernel, method="direct")
    later = u.clone()
    later[:, t // 2 :] = 1e30
    assert torch.equal(convolve(later, kernel, method="direct")[:, : t // 2], before[:, : t // 2])
    if length <= 16 or t * length <= 4096:
        assert torch.equal(convolve(u, kernel), before)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_the_transform_leaks_no_more_than_its_rounding(scale, device):
    u, kernel = (drawn(4, 16384, device=device, dtype=torch.float32) for _ in range(2))
    kernel = kernel * 0.999 ** torch.arange(16384, device=device)
    later = u.clone()
    later[:, 9000:] *= scale
    leak = convolve(later, kernel)[:, :9000] - convolve(u, kernel)[:, :9000]
    assert largest(leak) < 1e-6 * largest(later) * kernel.norm(dim=-1).max().item()


@EVERY_METHOD
@KINDS
@pytest.mark.parametrize(("t", "length"), [(5, 3), (3, 5), (70, 2)])
def test_gradients_pass_gradcheck_through_input_filter_and_tail(method, kinds, t, length, device):
    u = drawn(2, t, device=device, complex=kinds[0])
    given = [u, drawn(length, device=device, complex=kinds[1]), drawn(2, length - 1, device=device, complex=kinds[0])]
    for x in given:
        x.requires_grad_()
    assert torch.autograd.gradcheck(lambda *x: tuple(convolution(*x, method=method)), given, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *x: convolution(*x, method=method).output, given, fast_mode=True)


@EVERY_METHOD
def test_a_call_keeps_what_it_was_given_and_returns_what_is_its_own(method, device):
    u, kernel, tail = (drawn(2, n, device=device) for n in (9, 4, 3))
    copies = [x.clone() for x in (u, kernel, tail)]
    output, rest = convolution(u, kernel, tail, method=method)
    wanted = output.clone()
    rest.zero_()
    assert all(torch.equal(x, y) for x, y in zip((u, kernel, tail), copies, strict=True))
    for x in (u, kernel, tail):
        x.zero_()
    assert torch.equal(output, wanted)


@EVERY_METHOD
def test_no_steps_leave_the_tail_as_it_was(method, device):
    kernel, tail = drawn(2, 4, device=device), drawn(2, 3, device=device)
    output, rest = convolution(drawn(2, 0, device=device), kernel, tail, method=method)
    assert output.shape == (2, 0) and torch.equal(rest, tail) and rest.data_ptr() != tail.data_ptr()
    assert convolve(drawn(0, 5, device=device), kernel[:1], method=method).shape == (0, 5)
    assert torch.equal(convolve(drawn(2, 5, device=device), kernel[:, :0], method=method), kernel.new_zeros(2, 5))


@pytest.mark.parametrize("length", [*range(1, 70), 1000, 16385, 100_001])
def test_a_fast_length_holds_what_was_asked_and_little_more(length):
    found = fast_length(length)
    assert length <= found < max(1.34 * length, 8)
    odd = found
    while odd > 12 and odd % 2 == 0:
        odd //= 2
    assert odd <= 12


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"u": torch.ones(2, 5, dtype=torch.int64)}, "u must be real or complex floating.*int64"),
        ({"u": torch.ones(())}, r"u must be \(\.\.\., t\)"),
        ({"kernel": torch.ones(2, 0)}, r"L >= 1.*kernel \(2, 0\)"),
        ({"kernel": torch.ones(3, 4)}, r"broadcast.*u \(2, 5\), kernel \(3, 4\)"),
        ({"kernel": torch.ones(2, 4, device="meta")}, "u is on cpu, but kernel on meta"),
        ({"tail": torch.ones(2, 4)}, r"L - 1 = 3 inputs, \(2, 3\), but came as \(2, 4\)"),
        ({"tail": torch.ones(3, 3)}, r"\(3, 3\)"),
        ({"tail": torch.ones(3)}, r"\(3,\)"),
        ({"method": "slow"}, "fft, direct or auto, but came as 'slow'"),
    ],
)
def test_what_does_not_fit_gets_one_line(change, said):
    right = {"u": torch.ones(2, 5), "kernel": torch.ones(2, 4), "tail": torch.ones(2, 3), "method": "auto"}
    with pytest.raises(ValueError, match=said) as caught:
        convolution(**(right | change))
    assert "\n" not in str(caught.value)


MEASURE = """
import time, torch
from lavagna.forms.convolution import convolve
u, kernel = torch.randn(2, 64, 16384), torch.randn(64, 16384)
spectra = [torch.fft.rfft(x, n=32768) for x in (u, kernel)]

def bare():
    for x in (u, kernel):
        torch.fft.rfft(x, n=32768)
    torch.fft.irfft(spectra[0], n=32768)

def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start

ours, theirs = (min(seconds(f) for _ in range(7)) for f in (lambda: convolve(u, kernel), bare))
print(ours / theirs)
"""


def test_a_long_convolution_costs_little_more_than_its_transforms():
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        if (ratio := float(done.stdout)) <= 3:
            break
    assert ratio <= 3
