"""The CPU kernel of WKV is the loop over steps, forward and backward, masked, packed or cut, for keys of any size."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lavagna as lv
from lavagna.kernels.cpu import wkv as kernel
from lavagna.kernels.cpu.library import library
from lavagna.modules.exponential import NOTHING
from lavagna.modules.steps import Steps
from lavagna.modules.wkv import wkv
from over_steps import at_most_twice_as_far, close, cut_is_whole, hidden, packed_is_apart, threads_change_no_bit, twice
from transitions import difference

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)


class Average(NamedTuple):
    """What WKV takes."""

    log_decay: Tensor
    u: Tensor
    k: Tensor
    v: Tensor
    memory: Tensor
    stabilizer: Tensor

    def map(self, function) -> "Average":
        return Average(*map(function, self))

    def between(self, start: int, end: int, memory: Tensor, stabilizer: Tensor) -> "Average":
        k, v = self.k[:, start:end], self.v[:, start:end]
        return self._replace(k=k, v=v, memory=memory, stabilizer=stabilizer)


def drawn(b=2, t=70, c=33, *, rows=None, scale=3.0, fresh=False, dtype=torch.float64) -> Average:
    """Decays between 1e-3 and 10, keys of a scale; sums that something was added to, or of nothing."""
    rows = b if rows is None else rows
    memory, stabilizer = torch.randn(rows, c, 2, 1), scale * torch.randn(rows, c, 1)
    memory[:, :, 1] = 0.1 + memory[:, :, 1].abs()
    if fresh:
        memory, stabilizer = torch.zeros_like(memory), torch.full_like(stabilizer, NOTHING)
    log_decay = -(10 ** torch.empty(c).uniform_(-3, 1))
    k, v = scale * torch.randn(b, t, c), torch.randn(b, t, c)
    return Average(log_decay, torch.randn(c), k, v, memory, stabilizer).map(lambda x: x.to(dtype))


def run(some: Average, backend: str, *, unit=None, **options):
    """Averages, sums, and the unit these are over, their own or a given one: a loop and a tree round it otherwise."""
    steps = Steps("wkv", some.k, form="auto" if backend == "cpu" else "recurrent", backend=backend, **options)
    y, memory, stabilizer = wkv(*some, steps)
    if unit is not None:
        memory = memory * (stabilizer - unit).exp().unsqueeze(-1).to(memory.dtype)
    return steps.hide(y), memory, stabilizer


def gradients(some: Average, backend: str, weights, **options):
    leaves = some.map(lambda x: x.detach().requires_grad_())
    out = run(leaves, backend, **options)
    loss = sum((x * weight).sum() for x, weight in zip(out, weights, strict=True) if x.requires_grad)
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


def weights_of(some: Average, **options):
    return [torch.randn_like(x) for x in run(some, "torch", **options)]


def same(some: Average, tolerance=1e-12, **options):
    options["unit"] = run(some, "torch", **options)[2]
    ours, right = (run(some, backend, **options) for backend in ("cpu", "torch"))
    assert max(map(difference, ours, right)) < tolerance
    weights = weights_of(some, **options)
    ours, right = (gradients(some, backend, weights, **options) for backend in ("cpu", "torch"))
    for own, wanted in zip(ours, right, strict=True):
        assert difference(own, wanted) < 10 * tolerance


SIZES = [
    {},
    {"b": 1, "t": 1, "c": 1},
    {"b": 1, "t": 65, "c": 150},
    {"b": 3, "t": 9, "c": 64},
    {"b": 1, "t": 64, "c": 16},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_is_the_loop_over_steps_and_its_gradients_are(sizes):
    same(drawn(**sizes))
    same(drawn(**sizes, fresh=True))


@pytest.mark.parametrize("scale", [100.0, 1000.0])
def test_so_it_is_for_keys_whose_exponentials_no_float_holds(scale):
    # Keys of 1000 are off by 1e-13.
    same(drawn(scale=scale), 1e-11)
    ours = gradients(some := drawn(scale=scale, dtype=torch.float32), "cpu", weights_of(some))
    assert all(x.isfinite().all() for x in (*run(some, "cpu"), *ours))


def test_masks_and_borders_in_any_place_change_nothing_of_the_rest():
    mask = torch.rand(1, 140) > 0.3
    mask[0, 20:90] = False
    for borders in (None, [0, 30, 40, 41, 140], [0, 3, 3, 76, 140], [0, 25, 85, 90, 140]):
        some = drawn(b=1, t=140, rows=4 if borders else 1)
        same(some, cu_seqlens=borders)
        options = {"mask": mask, "cu_seqlens": borders}
        same(some, **options)
        # Whatever a masked step holds.
        spoiled = some._replace(k=hidden(some.k, mask), v=hidden(some.v, mask))
        assert all(map(torch.equal, run(spoiled, "cpu", **options), run(some, "cpu", **options)))
        found = gradients(spoiled, "cpu", weights_of(some, **options), **options)
        assert all(x.isfinite().all() for x in found)
        assert not any(x[~mask].any() for x in (found[2], found[3]))


def test_packed_rows_are_those_that_were_apart_to_the_bit():
    some = drawn(b=1, t=100, rows=3, dtype=torch.float32)
    whole = run(some, "cpu", cu_seqlens=[0, 10, 10, 100])
    assert packed_is_apart(whole, part(some), [some.memory, some.stabilizer], [0, 10, 10, 100])


def part(some: Average):
    """Calls of the kernel on some of the steps."""
    return lambda start, end, *state: run(some.between(start, end, *state), "cpu")


def test_any_cut_is_the_whole_to_the_bit():
    some = drawn(t=67, dtype=torch.float32)
    assert all(cut_is_whole(part(some), [some.memory, some.stabilizer], 67, cut) for cut in (0, 1, 31, 64, 67))


@pytest.mark.parametrize("sizes", [{}, {"b": 1, "t": 300, "c": 40}, {"scale": 30.0}], ids=str)
def test_in_float32_it_is_at_most_twice_as_far_from_float64_as_torch(sizes):
    narrow = drawn(**sizes, dtype=torch.float32)
    exact = narrow.map(Tensor.double)
    weights, unit = weights_of(narrow), run(exact, "torch")[2]

    def forward(some, backend, **options):
        return run(some, backend, **options)[:2]

    def back(some, backend, **options):
        return gradients(some, backend, [each.to(some.k.dtype) for each in weights], **options)

    for find in (forward, back):
        ours, torchs = (find(narrow, backend, unit=unit) for backend in ("cpu", "torch"))
        right = find(exact, "torch", unit=unit)
        # The sum of u and a key of 90 is off by 4e-6.
        assert at_most_twice_as_far(ours, torchs, right, 4e-6 if "scale" in sizes else 1e-6)


@pytest.mark.parametrize("key", [0.0, 900.0])
def test_a_slow_decay_is_not_rounded_over_a_long_text(key):
    """Its average of a value that comes once in a while is that of float64, though e^w and m + w round to 1 and m."""
    some = drawn(b=1, t=20000, c=3, fresh=True, dtype=torch.float32)
    v = (torch.arange(20000) % 7 == 0).float()[None, :, None].expand(1, 20000, 3)
    decays = torch.tensor([-3e-8, -1e-6, -1e-4])
    some = some._replace(log_decay=decays, k=torch.full_like(some.k, key), v=v)
    assert difference(run(some, "cpu")[0], run(some.map(Tensor.double), "torch")[0]) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_wide(dtype):
    some = drawn(dtype=torch.float32)
    mixed = some._replace(k=some.k.to(dtype), v=some.v.to(dtype))
    wide = mixed._replace(k=mixed.k.float(), v=mixed.v.float())
    assert all(map(torch.equal, run(mixed, "cpu"), run(wide, "cpu")))
    weights = weights_of(some)
    for x, wanted, given in zip(gradients(mixed, "cpu", weights), gradients(wide, "cpu", weights), mixed, strict=True):
        assert x.dtype == given.dtype and torch.equal(x, wanted.to(x.dtype))


def test_no_layout_of_what_comes_matters():
    some = drawn(dtype=torch.float32)
    right = run(some, "cpu")
    for other in (
        some.map(lambda each: each.movedim(-1, 0).contiguous().movedim(0, -1)),
        some.map(lambda each: torch.stack([each, each * torch.nan], -1)[..., 0]),
        some.map(lambda each: F.pad(each, (2, 3), value=torch.nan)[..., 2:-3]),
    ):
        assert all(map(torch.equal, run(other, "cpu"), right))
    one = some._replace(k=some.k[:, :1].expand_as(some.k), v=some.v[:1].expand_as(some.v))
    assert all(map(torch.equal, run(one, "cpu"), run(one.map(Tensor.contiguous), "cpu")))


def test_the_number_of_threads_changes_no_bit():
    some = drawn(t=80, c=300, dtype=torch.float32)
    weights = weights_of(some)
    assert threads_change_no_bit(lambda: [*run(some, "cpu"), *gradients(some, "cpu", weights)])


@pytest.mark.parametrize("sizes", [{"t": 0}, {"b": 0}], ids=str)
def test_nothing_is_legal(sizes):
    some = drawn(**sizes)
    ours, right = run(some, "cpu"), run(some, "torch")
    assert all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(ours, right, strict=True))
    assert ours[1].data_ptr() != some.memory.data_ptr() or not ours[1].numel()
    same(some)


@pytest.mark.parametrize(
    "options", [{}, {"mask": torch.tensor([[True, False, True, True]])}, {"cu_seqlens": [0, 1, 4]}]
)
def test_gradients_of_gradients_are_those_of_torch(options):
    some = drawn(b=1, t=4, c=2, rows=2 if "cu_seqlens" in options else 1).map(Tensor.requires_grad_)
    ours, right = (twice(run(some, backend, **options)[:2], some) for backend in ("cpu", "torch"))
    assert close(ours, right, 1e-11)


def test_functional_and_forward_derivatives_are_torchs():
    some = drawn(b=1, t=5, c=2)
    steps = Steps("wkv", some.k)

    def averages(k):
        return wkv(*some._replace(k=k), steps).y

    tangent = torch.randn_like(some.k)
    _, moved = torch.func.jvp(averages, (some.k,), (tangent,))
    (back,) = torch.func.vjp(averages, some.k)[1](torch.ones_like(moved))
    assert torch.allclose((back * tangent).sum(), moved.sum(), rtol=1e-12)


def test_the_layer_takes_it_unless_a_form_is_asked_for(monkeypatch):
    layer, x = lv.layers.build("rwkv4", 16).double(), torch.randn(2, 9, 16, dtype=torch.float64)
    calls = []
    monkeypatch.setattr(kernel, "_RUN", lambda *given: calls.append(1) or torch.ops.lavagna.wkv(*given))
    fused, right = layer(x), layer(x, form="recurrent", backend="torch")
    assert difference(fused.y, right.y) < 1e-12 and difference(fused.state.memory, right.state.memory) < 1e-12
    layer(x, backend="cpu")
    assert len(calls) == 2
    layer(x, form="recurrent", backend="cpu")
    layer(x, backend="torch")
    assert len(calls) == 2
