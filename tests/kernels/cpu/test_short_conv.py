"""The CPU kernel of the short convolution is the sum over taps, forward and backward, masked, packed or cut."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv
from lavagna.kernels.cpu import short_conv as module
from lavagna.kernels.cpu.library import library
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from over_steps import at_most_twice_as_far, close, hidden, threads_change_no_bit, twice
from transitions import difference

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

BENT = pytest.mark.parametrize("activation", [None, "silu"])


def made(channels=37, width=4, *, bias=True, activation="silu", dtype=torch.float64) -> ShortConv:
    conv = ShortConv(channels, width, bias=bias, activation=activation)
    for parameter in conv.parameters():
        torch.nn.init.normal_(parameter)
    return conv.to(dtype)


def drawn(conv: ShortConv, b=2, t=9, rows=None, dtype=torch.float64):
    size = (b if rows is None else rows, conv.width - 1, conv.channels)
    return torch.randn(b, t, conv.channels, dtype=dtype), torch.randn(size, dtype=dtype)


def run(conv, x, window, backend="cpu", **options):
    return conv(x, window, Steps("conv", x, backend=backend, **options))


def gradients(conv, x, window, backend="cpu", **options):
    leaves = [*conv.parameters(), *(part.detach().requires_grad_() for part in (x, window))]
    generator = torch.Generator().manual_seed(1)
    found = run(conv, *leaves[-2:], backend, **options)
    loss = sum((part * torch.randn(part.shape, generator=generator).to(part.dtype)).sum() for part in found)
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


def same(conv, x, window, **options):
    for find in (run, gradients):
        ours, right = find(conv, x, window, **options), find(conv, x, window, "torch", **options)
        assert max(map(difference, ours, right)) < 1e-12
    return ours


@BENT
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 9])
@pytest.mark.parametrize("t", [0, 1, 2, 70])
def test_it_is_the_sum_over_taps_and_its_gradients_are(width, t, bias, activation):
    conv = made(width=width, bias=bias, activation=activation)
    same(conv, *drawn(conv, t=t))


@pytest.mark.parametrize("channels", [1, 16, 600])
def test_any_number_of_channels_is_served(channels):
    conv = made(channels)
    same(conv, *drawn(conv))


@BENT
def test_masks_and_borders_in_any_place_change_nothing_of_the_rest(activation):
    conv, mask = made(activation=activation), torch.rand(1, 40) > 0.3
    mask[0, 10:20] = False
    for borders in (None, [0, 9, 12, 13, 40], [0, 3, 3, 36, 40]):
        x, window = drawn(conv, 1, 40, len(borders) - 1 if borders else 1)
        same(conv, x, window, cu_seqlens=borders)
        options = {"mask": mask, "cu_seqlens": borders}
        same(conv, x, window, **options)
        spoiled = hidden(x, mask)
        assert all(map(torch.equal, run(conv, spoiled, window, **options), run(conv, x, window, **options)))
        found = gradients(conv, spoiled, window, **options)
        assert all(part.isfinite().all() for part in found) and not found[-2][~mask].any()


@BENT
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_cut_is_the_whole_to_the_bit(dtype, activation):
    conv = made(activation=activation, dtype=dtype)
    x, window = drawn(conv, dtype=dtype)
    whole, last = run(conv, x, window)
    for cuts in ([], [1], [0, 4], [1, 2, 3, 8]):
        pieces, after = [], window
        for start, end in pairwise([0, *cuts, 9]):
            y, after = run(conv, x[:, start:end], after)
            pieces.append(y)
        assert torch.equal(torch.cat(pieces, 1), whole) and torch.equal(after, last)


@pytest.mark.parametrize("width", [2, 4])
def test_in_float32_it_is_at_most_twice_as_far_from_float64_as_torch(width):
    conv = made(width=width, dtype=torch.float32)
    x, window = drawn(conv, t=300, dtype=torch.float32)
    for find in (run, gradients):
        ours, torchs = find(conv, x, window), find(conv, x, window, "torch")
        right = find(conv.double(), x.double(), window.double(), "torch")
        conv.float()
        assert at_most_twice_as_far(ours, torchs, right)


@pytest.mark.parametrize("size", [-1e4, -90.0, 0.0, 90.0, 1e4])
def test_no_size_makes_anything_but_a_number(size):
    conv = made(dtype=torch.float32)
    x, window = drawn(conv, dtype=torch.float32)
    x[:, 3] = size
    assert max(map(difference, run(conv, x, window), run(conv, x, window, "torch"))) < 1e-6
    assert all(part.isfinite().all() for part in gradients(conv, x, window))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kept", ["its own", "float32"])
def test_half_precision_is_rounded_once(dtype, kept):
    conv = made(dtype=dtype)
    x, window = drawn(conv, dtype=dtype)
    window = window.float() if kept == "float32" else window
    (y, last), (wide, right) = run(conv, x, window), run(made_wide(conv), x.float(), window.float())
    assert y.dtype == dtype and torch.equal(y, wide.to(dtype))
    assert last.dtype == window.dtype and torch.equal(last, right.to(window.dtype))
    narrow = gradients(conv, x, window)
    assert [part.dtype for part in narrow] == [dtype, dtype, dtype, window.dtype]
    for own, other in zip(narrow, gradients(conv, x, window, "torch"), strict=True):
        assert difference(own, other) < 2e-2


def made_wide(conv: ShortConv) -> ShortConv:
    wide = ShortConv(conv.channels, conv.width, bias=conv.bias is not None, activation=conv.activation)
    wide.load_state_dict({name: part.float() for name, part in conv.state_dict().items()})
    return wide


def test_no_layout_of_what_comes_matters():
    conv = made(dtype=torch.float32)
    x, window = drawn(conv, dtype=torch.float32)
    right = run(conv, x, window)
    for change in (
        lambda part: part.transpose(1, 2).contiguous().transpose(1, 2),
        lambda part: torch.stack([part, part * torch.nan], -1)[..., 0],
        lambda part: F.pad(part, (2, 3), value=torch.nan)[..., 2:-3],
    ):
        assert all(map(torch.equal, run(conv, change(x), change(window)), right))
    still = x[:, :1].expand_as(x)
    assert all(map(torch.equal, run(conv, still, window), run(conv, still.contiguous(), window)))


def test_the_number_of_threads_changes_no_bit():
    conv = made(1100, dtype=torch.float32)
    given = drawn(conv, t=80, dtype=torch.float32)
    assert threads_change_no_bit(lambda: [*run(conv, *given), *gradients(conv, *given)])


@pytest.mark.parametrize(
    "options", [{}, {"mask": torch.tensor([[True, False, True, True]])}, {"cu_seqlens": [0, 1, 4]}]
)
def test_gradients_of_gradients_are_those_of_torch(options):
    conv = made(3)
    x, window = drawn(conv, 1, 4, 2 if "cu_seqlens" in options else 1)
    leaves = [*conv.parameters(), x.requires_grad_(), window.requires_grad_()]
    ours, right = (twice(run(conv, x, window, backend, **options), leaves) for backend in ("cpu", "torch"))
    assert close(ours, right, 1e-11)


def test_layers_take_it_unless_a_form_is_asked_for(monkeypatch):
    calls = []
    monkeypatch.setattr(module, "_RUN", lambda *given: calls.append(1) or torch.ops.lavagna.short_conv(*given))
    for name in ("mamba", "mamba2", "gated_delta_net", "rg_lru", "longhorn", "hyena"):
        layer, x = lv.layers.build(name, 32).double(), torch.randn(2, 9, 32, dtype=torch.float64)
        calls.clear()
        ours, right = layer(x), layer(x, backend="torch")
        assert len(calls) == 1 and difference(ours.y, right.y) < 1e-11
        layer(x, form="recurrent" if "recurrent" in layer.forms else "convolution")
        assert len(calls) == 1
