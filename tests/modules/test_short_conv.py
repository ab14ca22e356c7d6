"""The short convolution and its window."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps


def make(device, dtype=torch.float64, width=4):
    conv = ShortConv(5, width, bias=True)
    conv.reset_parameters()
    with torch.no_grad():
        conv.bias.fill_(0.5)
    return conv.to(device, dtype)


def run(conv, x, window=None, **options):
    steps = Steps("test", x, **options)
    if window is None:
        window = conv.initial_window(steps.sequences, x.device, x.dtype)
    return conv(x, window, steps)


@pytest.mark.parametrize("width", [1, 2, 4])
def test_it_is_a_depthwise_convolution_with_zeros_before_the_start(device, width):
    conv, x = make(device, width=width), torch.randn(2, 7, 5, device=device, dtype=torch.float64)
    padded = F.pad(x.mT, (width - 1, 0))
    right = F.conv1d(padded, conv.weight[:, None], conv.bias, groups=5).mT
    assert torch.allclose(run(conv, x)[0], right, rtol=1e-13)


@given(cuts=st.lists(st.integers(0, 9), max_size=6).map(sorted))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_cut_is_exact_to_the_bit(device, dtype, cuts):
    conv, x = make(device, dtype), torch.randn(2, 9, 5, device=device).to(dtype)
    whole, last = run(conv, x)
    pieces, window = [], None
    for start, end in pairwise([0, *cuts, 9]):
        y, window = run(conv, x[:, start:end], window)
        pieces.append(y)
    assert torch.equal(torch.cat(pieces, 1), whole) and torch.equal(window, last)


@given(mask=st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_masked_step_is_stepped_over(device, mask):
    conv, x = make(device), torch.randn(1, 8, 5, device=device, dtype=torch.float64)
    window = torch.randn(1, 3, 5, device=device, dtype=torch.float64)
    real = torch.tensor([mask], device=device)
    hidden = x.masked_fill(~real[..., None], torch.nan)
    y, last = run(conv, hidden, window, mask=real)
    alone, right = run(conv, x[:, real[0]], window)
    assert torch.equal(y[:, real[0]], alone) and torch.equal(last, right)


def test_the_first_token_of_a_segment_sees_its_own_window_only(device):
    conv, x = make(device), torch.randn(1, 8, 5, device=device, dtype=torch.float64)
    windows = torch.randn(3, 3, 5, device=device, dtype=torch.float64)
    y, last = run(conv, x, windows, cu_seqlens=[0, 3, 3, 8])
    for row, (start, end) in enumerate([(0, 3), (3, 3), (3, 8)]):
        alone, right = run(conv, x[:, start:end], windows[row : row + 1])
        assert torch.equal(y[:, start:end], alone) and torch.equal(last[row : row + 1], right)


def test_a_window_never_loses_digits(device):
    conv, x = make(device, torch.bfloat16), torch.randn(1, 1, 5, device=device).to(torch.bfloat16)
    window = torch.randn(1, 3, 5, device=device)
    _, last = run(conv, x, window)
    assert last.dtype == torch.float32 and torch.equal(last[:, :2], window[:, 1:])


def test_packing_one_long_text_with_many_short_ones_costs_no_more_than_their_sum(device):
    conv, sizes = make(device), []
    x = torch.randn(1, 1024 + 200, 5, device=device, dtype=torch.float64)
    convolved = conv._convolved
    conv._convolved = lambda x, *rest: sizes.append(x.shape[0] * x.shape[1]) or convolved(x, *rest)
    y, _ = run(conv, x, cu_seqlens=[0, *range(2, 202, 2), 1224])
    assert sum(sizes) < 2 * x.shape[1]
    assert torch.equal(y[:, 200:], run(conv, x[:, 200:])[0])
