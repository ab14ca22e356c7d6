"""The CPU kernel of sLSTM's cells is the loop over steps, forward and backward, masked, packed or cut."""

import itertools
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lavagna as lv
from lavagna.kernels.cpu import slstm as kernel
from lavagna.kernels.cpu.library import library
from lavagna.modules.exponential import NOTHING
from over_steps import at_most_twice_as_far, close, cut_is_whole, hidden, packed_is_apart, threads_change_no_bit, twice
from transitions import difference

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)


class Cells(NamedTuple):
    """What a loop over cells takes: its gates are given i, f, z and o."""

    i: Tensor
    f: Tensor
    z: Tensor
    o: Tensor
    bias: Tensor
    mixing: Tensor
    hidden: Tensor
    cell: Tensor
    normalizer: Tensor
    stabilizer: Tensor

    def map(self, function) -> "Cells":
        return Cells(*map(function, self))

    def between(self, start: int, end: int, *state: Tensor) -> "Cells":
        return Cells(*(x[:, start:end] for x in self[:4]), self.bias, self.mixing, *state)


def drawn(b=2, t=9, h=2, d=20, *, rows=None, scale=1.0, fresh=False, dtype=torch.float64) -> Cells:
    """Gates of a scale, and cells that something was written to, or nothing."""
    rows = b if rows is None else rows
    gates = [scale * torch.randn(b, t, h, d) for _ in range(4)]
    hidden, cell, normalizer, stabilizer = torch.randn(4, rows, h, d).clone()
    normalizer = 0.1 + normalizer.abs()
    if fresh:
        hidden, cell, normalizer, stabilizer = 0 * hidden, 0 * cell, 0 * normalizer, torch.full_like(cell, NOTHING)
    mixing = torch.randn(h, 4 * d, d) * d**-0.5
    some = Cells(*gates, torch.randn(4, h, d), mixing, hidden, cell, normalizer, stabilizer)
    return some.map(lambda x: x.to(dtype))


def defined(some: Cells, *, real=None, offsets=None):
    """Sequence by sequence and step by step; the unit m is one of measure."""
    borders = list(itertools.pairwise(offsets)) if offsets else [(0, some.i.shape[1])] * len(some.i)
    shown, lasts = torch.zeros_like(some.i), []
    for row, (start, end) in enumerate(borders):
        own, (h, c, n, m) = 0 if offsets else row, (x[row] for x in some[6:])
        for t in range(start, end):
            if real is not None and not real[own, t]:
                continue
            mixed = torch.einsum("hi,hoi->ho", h, some.mixing).unflatten(1, (4, -1)).unbind(1)
            i, f, z, o = (x[own, t] + some.bias[j] + mixed[j] for j, x in enumerate(some[:4]))
            f = F.logsigmoid(f) + m
            m = torch.maximum(i, f).detach()
            c, n = (f - m).exp() * c + (i - m).exp() * z.tanh(), (f - m).exp() * n + (i - m).exp()
            h = o.sigmoid() * c / n
            shown = shown.index_put((torch.tensor(own), torch.tensor(t)), h)
        lasts.append((h, c, n, m))
    return shown, *(torch.stack(x) for x in zip(*lasts, strict=True))


def fused(some: Cells, **options):
    return kernel.slstm(*some, **options)


def gradients(run, some: Cells, weights, **options):
    leaves = some.map(lambda x: x.detach().requires_grad_())
    out = run(leaves, **options)
    loss = sum((x * weight).sum() for x, weight in zip(out, weights, strict=True) if x.requires_grad)
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


def weights_of(some: Cells):
    return [torch.randn(some.i.shape).to(some.cell), *(torch.randn_like(some.cell) for _ in range(4))]


def same(some: Cells, tolerance=1e-12, **options):
    assert max(map(difference, fused(some, **options), defined(some, **options))) < tolerance
    weights = weights_of(some)
    ours, right = (gradients(run, some, weights, **options) for run in (fused, defined))
    for own, wanted in zip(ours, right, strict=True):
        # Those of gates that are shut or open for good are nothing, to rounding.
        assert not own.numel() or (own - wanted).abs().max() < 10 * tolerance * wanted.abs().max().clamp_min(1)


SIZES = [
    {},
    {"b": 1, "t": 1, "h": 1, "d": 1},
    {"b": 1, "t": 1, "h": 2, "d": 16},
    {"b": 1, "t": 4, "h": 3, "d": 48},
    {"b": 7, "t": 5, "h": 1, "d": 33},
    {"b": 13, "t": 2, "h": 2, "d": 8},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_is_the_loop_over_steps_and_its_gradients_are(sizes):
    same(drawn(**sizes))
    same(drawn(**sizes, fresh=True))


@pytest.mark.parametrize("scale", [30.0, 1000.0])
def test_so_it_is_for_gates_whose_exponentials_no_float_holds(scale):
    same(drawn(scale=scale), 1e-11)
    some = drawn(scale=scale, dtype=torch.float32)
    assert all(x.isfinite().all() for x in (*fused(some), *gradients(fused, some, weights_of(some))))


def test_masks_and_borders_in_any_place_change_nothing_of_the_rest():
    mask = torch.rand(1, 20) > 0.3
    mask[0, 4:11] = False
    for borders in (None, [0, 5, 9, 10, 20], [0, 3, 3, 13, 20]):
        some = drawn(b=1, t=20, d=5, rows=4 if borders else 1)
        for real in (None, mask):
            same(some, real=real, offsets=borders)
        # Whatever a masked step holds.
        options = {"real": mask, "offsets": borders}
        spoiled = Cells(*(hidden(x, mask) for x in some[:4]), *some[4:])
        assert all(map(torch.equal, fused(spoiled, **options), fused(some, **options)))
        found = gradients(fused, spoiled, weights_of(some), **options)
        assert all(x.isfinite().all() for x in found)
        assert not any(x[~mask].any() for x in found[:4])


def test_rows_of_any_length_stand_beside_each_other():
    mask = torch.rand(8, 12) < torch.linspace(0, 1, 8)[:, None]
    same(drawn(b=8, t=12, d=7), real=mask)


def test_packed_rows_are_those_that_were_apart_to_the_bit():
    some = drawn(b=1, t=30, d=20, rows=3, dtype=torch.float32)
    whole = fused(some, offsets=[0, 10, 10, 30])
    assert packed_is_apart(whole, part(some), some[6:], [0, 10, 10, 30])


def part(some: Cells):
    """Calls of the kernel on some of the steps."""
    return lambda start, end, *state: fused(some.between(start, end, *state))


@pytest.mark.parametrize("size", [20, 32])
def test_any_cut_is_the_whole_to_rounding(size):
    """Whole vectors of few steps are multiplied by the matrix as it lies, whose sums are in another order."""
    some = drawn(t=30, d=size)
    assert all(cut_is_whole(part(some), some[6:], 30, cut, same=close) for cut in (0, 1, 3, 17, 29, 30))


@pytest.mark.parametrize("sizes", [{"t": 40, "d": 64}, {"b": 5, "t": 7, "d": 200, "h": 1}], ids=str)
def test_in_float32_it_is_at_most_twice_as_far_from_float64_as_torch(sizes):
    narrow = drawn(**sizes, dtype=torch.float32)
    exact, weights = narrow.map(Tensor.double), weights_of(narrow)

    def back(run, some):
        return gradients(run, some, [each.to(some.i.dtype) for each in weights])

    for find in (lambda run, some: run(some), back):
        assert at_most_twice_as_far(find(fused, narrow), find(defined, narrow), find(defined, exact))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_wide(dtype):
    some = drawn(dtype=torch.float32)
    mixed = Cells(*(x.to(dtype) for x in some[:4]), *some[4:])
    wide = mixed.map(Tensor.float)
    assert all(map(torch.equal, fused(mixed), fused(wide)))
    weights = weights_of(some)
    found = (gradients(fused, each, weights) for each in (mixed, wide))
    for own, wanted, given in zip(*found, mixed, strict=True):
        assert own.dtype == given.dtype and torch.equal(own, wanted.to(own.dtype))


def test_no_layout_of_what_comes_matters():
    some = drawn(dtype=torch.float32)
    right = fused(some)
    for other in (
        some.map(lambda each: each.movedim(-1, 0).contiguous().movedim(0, -1)),
        some.map(lambda each: each.movedim(-2, 0).contiguous().movedim(0, -2)),
        some.map(lambda each: torch.stack([each, each * torch.nan], -1)[..., 0]),
        some.map(lambda each: F.pad(each, (2, 3), value=torch.nan)[..., 2:-3]),
    ):
        assert all(map(torch.equal, fused(other), right))
    one = some._replace(i=some.i[:, :1].expand_as(some.i), f=some.f[:1, :, :1].expand_as(some.f))
    assert all(map(torch.equal, fused(one), fused(one.map(Tensor.contiguous))))


def test_the_number_of_threads_changes_no_bit():
    some = drawn(b=9, t=20, h=3, d=20, dtype=torch.float32)
    weights = weights_of(some)
    assert threads_change_no_bit(lambda: [*fused(some), *gradients(fused, some, weights)])


@pytest.mark.parametrize("sizes", [{"t": 0}, {"b": 0}], ids=str)
def test_nothing_is_legal(sizes):
    some = drawn(**sizes)
    out = fused(some)
    assert out[0].shape == some.i.shape
    assert all(map(torch.equal, out[1:], some[6:]))
    assert out[1].data_ptr() != some.hidden.data_ptr() or not out[1].numel()
    found = gradients(fused, some, weights := weights_of(some))
    assert all(map(torch.equal, found[6:], weights[1:])) and not any(x.any() for x in found[:6])


@pytest.mark.parametrize(
    "options", [{}, {"real": torch.tensor([[True, False, True]])}, {"offsets": [0, 1, 3]}], ids=str
)
def test_gradients_of_gradients_are_those_of_torch(options):
    some = drawn(b=1, t=3, h=1, d=2, rows=2 if "offsets" in options else 1).map(Tensor.requires_grad_)
    ours, right = (twice(run(some, **options)[:4], some) for run in (fused, defined))
    assert close(ours, right, 1e-11)


def test_the_layer_takes_it_unless_torch_is_asked_for(monkeypatch):
    layer, x = lv.layers.build("slstm", 16).double(), torch.randn(2, 9, 16, dtype=torch.float64)
    calls = []
    monkeypatch.setattr(kernel, "_RUN", lambda *given: calls.append(1) or torch.ops.lavagna.slstm(*given))
    ours, right = layer(x), layer(x, backend="torch")
    assert difference(ours.y, right.y) < 1e-12 and difference(ours.state.cell, right.state.cell) < 1e-12
    layer(x, form="recurrent", backend="cpu")
    assert len(calls) == 2
    # What has no rule in the kernel is torch's, or refused.
    moved = torch.func.jvp(lambda x: layer(x).y, (x,), (x,))[1]
    assert moved.isfinite().all() and len(calls) == 2
    with pytest.raises(ValueError, match=r"^slstm: .*no rule for torch.func.*backend='torch'"):
        torch.func.vmap(lambda x: layer(x, backend="cpu").y)(x[None])
