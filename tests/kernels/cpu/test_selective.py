"""The CPU kernel of the selective scan is the loop over steps, forward and backward, masked, packed or cut."""

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lavagna as lv
from lavagna.kernels.cpu import selective
from lavagna.kernels.cpu.library import library
from lavagna.modules.selective_scan import selective_scan
from lavagna.modules.steps import Steps
from over_steps import at_most_twice_as_far, close, cut_is_whole, hidden, packed_is_apart, threads_change_no_bit, twice
from transitions import difference

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)


class Scan(NamedTuple):
    """What a selective scan takes."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    memory: Tensor

    def map(self, function) -> "Scan":
        return Scan(*map(function, self))


def drawn(b=2, t=70, c=33, n=3, *, rows=None, dtype=torch.float64) -> Scan:
    """Steps between 1e-3 and 10: decays near one and near nothing."""
    x, B, C = torch.randn(b, t, c), torch.randn(b, t, n), torch.randn(b, t, n)
    dt, A = 10 ** torch.empty(b, t, c).uniform_(-3, 1), -torch.empty(c, n).uniform_(0.1, 4)
    some = Scan(x, dt, A, B, C, torch.randn(c), torch.randn(b if rows is None else rows, c, 1, n))
    return some.map(lambda part: part.to(dtype))


def run(some: Scan, backend: str, **options):
    form = "auto" if backend == "cpu" else "recurrent"
    steps = Steps("scan", some.x, form=form, backend=backend, **options)
    y, memory = selective_scan(*some, steps)
    return steps.hide(y), memory


def gradients(some: Scan, backend: str, weights, **options):
    leaves = some.map(lambda part: part.detach().requires_grad_())
    loss = sum((part * weight).sum() for part, weight in zip(run(leaves, backend, **options), weights, strict=True))
    return torch.autograd.grad(loss, leaves, materialize_grads=True)


def weights_of(some: Scan, **options):
    return [torch.randn_like(part) for part in run(some, "torch", **options)]


def same(some: Scan, tolerance=1e-12, **options):
    ours, right = (run(some, backend, **options) for backend in ("cpu", "torch"))
    assert max(map(difference, ours, right)) < tolerance
    weights = weights_of(some, **options)
    ours, right = (gradients(some, backend, weights, **options) for backend in ("cpu", "torch"))
    for own, wanted in zip(ours, right, strict=True):
        assert difference(own, wanted) < tolerance


SIZES = [
    {},
    {"b": 1, "t": 1, "c": 1, "n": 1},
    {"b": 1, "t": 65, "c": 300, "n": 16},
    {"b": 3, "t": 9, "c": 64, "n": 5},
    {"b": 1, "t": 128, "c": 128, "n": 2},
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_it_is_the_loop_over_steps_and_its_gradients_are(sizes):
    same(drawn(**sizes))


def test_masks_and_borders_in_any_place_change_nothing_of_the_rest():
    mask = torch.rand(1, 140) > 0.3
    mask[0, 20:90] = False
    for borders in (None, [0, 30, 40, 41, 140], [0, 3, 3, 76, 140]):
        some = drawn(b=1, t=140, rows=4 if borders else 1)
        same(some, cu_seqlens=borders)
        options = {"mask": mask, "cu_seqlens": borders}
        same(some, **options)
        # Whatever a masked step holds.
        spoiled = some.map(lambda x: hidden(x, mask) if x.shape[:2] == (1, 140) else x)
        assert all(map(torch.equal, run(spoiled, "cpu", **options), run(some, "cpu", **options)))
        found = gradients(spoiled, "cpu", weights_of(some, **options), **options)
        assert all(x.isfinite().all() for x in found)
        assert not any(x[~mask].any() for x in (found[0], found[1], found[3], found[4]))


@pytest.mark.parametrize("n", [8, 16, 32])
@pytest.mark.parametrize("c", [1, 33, 260])
def test_a_single_step_on_whole_vectors_is_the_loops_and_a_masked_one_does_nothing(c, n):
    some = drawn(t=1, c=c, n=n)
    for own, right in zip(run(some, "cpu"), run(some, "torch"), strict=True):
        assert difference(own, right) < 1e-12
    mask = torch.tensor([[True], [False]])
    y, memory = run(some, "cpu", mask=mask)
    assert torch.equal(memory[0], run(some, "cpu")[1][0]) and torch.equal(memory[1], some.memory[1])
    assert not y[1].any()


def test_packed_rows_are_those_that_were_apart_to_the_bit():
    some = drawn(b=1, t=100, rows=3, dtype=torch.float32)
    whole = run(some, "cpu", cu_seqlens=[0, 10, 10, 100])
    assert packed_is_apart(whole, part(some), [some.memory], [0, 10, 10, 100])


def part(some: Scan):
    """Calls of the kernel on some of the steps."""

    def call(start: int, end: int, memory: Tensor):
        x, dt, B, C = (each[:, start:end] for each in (some.x, some.dt, some.B, some.C))
        return run(Scan(x, dt, some.A, B, C, some.D, memory), "cpu")

    return call


def test_any_cut_is_the_whole_to_the_bit():
    some = drawn(t=67, dtype=torch.float32)
    assert all(cut_is_whole(part(some), [some.memory], 67, cut) for cut in (0, 1, 33, 64, 67))


@pytest.mark.parametrize("sizes", [{}, {"b": 1, "t": 300, "c": 40, "n": 16}], ids=str)
def test_in_float32_it_is_at_most_twice_as_far_from_float64_as_torch(sizes):
    narrow = drawn(**sizes, dtype=torch.float32)
    exact = narrow.map(Tensor.double)
    weights = weights_of(narrow)
    for find in (run, lambda some, backend: gradients(some, backend, [each.to(some.x.dtype) for each in weights])):
        assert at_most_twice_as_far(find(narrow, "cpu"), find(narrow, "torch"), find(exact, "torch"))


def test_a_slow_decay_is_not_rounded_over_a_long_text():
    some = drawn(b=1, t=20000, c=2, n=1, dtype=torch.float32)._replace(
        x=torch.ones(1, 20000, 2),
        dt=torch.full((1, 20000, 2), 3e-5),
        B=torch.ones(1, 20000, 1),
        A=torch.tensor([[-1.0], [-3.0]]),
    )
    assert max(map(difference, run(some, "cpu"), run(some.map(Tensor.double), "torch"))) < 2e-5


@pytest.mark.parametrize("dt", [0.0, 1e-30, 87.0, 88.5, 104.0, 1e4, 1e30])
@pytest.mark.parametrize("A", [-1.0, -1e-30, -1e30, -torch.inf])
def test_no_size_of_a_step_or_a_rate_makes_anything_but_a_number(dt, A):
    some = drawn(b=1, t=5, dtype=torch.float32)
    some.dt[:, 2], some.A[4] = dt, A
    ours, right = run(some, "cpu"), run(some.map(Tensor.double), "torch")
    assert max(map(difference, ours, right)) < 1e-6
    assert all(each.isfinite().all() for each in gradients(some, "cpu", weights_of(some)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_is_rounded_once(dtype):
    some = drawn(dtype=torch.float32)
    mixed = some._replace(x=some.x.bfloat16(), B=some.B.to(dtype), C=some.C.to(dtype))
    ours, right = run(mixed, "cpu"), run(mixed.map(Tensor.float), "cpu")
    assert ours[0].dtype == dtype and torch.equal(ours[0], right[0].to(dtype)) and torch.equal(ours[1], right[1])
    weights = weights_of(some)
    own = gradients(mixed, "cpu", [weights[0].to(dtype), weights[1]])
    for found, given, wanted in zip(own, mixed, gradients(mixed.map(Tensor.float), "cpu", weights), strict=True):
        assert found.dtype == given.dtype and difference(found, wanted) < (2e-2 if dtype == torch.bfloat16 else 5e-3)


def test_no_layout_of_what_comes_matters():
    some = drawn(dtype=torch.float32)
    right = run(some, "cpu")
    for other in (
        some.map(lambda each: each.movedim(-1, 0).contiguous().movedim(0, -1)),
        some.map(lambda each: each.contiguous().flip(0).flip(0)),
        some.map(lambda each: torch.stack([each, each * torch.nan], -1)[..., 0]),
        some.map(lambda each: F.pad(each, (2, 3), value=torch.nan)[..., 2:-3]),
    ):
        assert all(map(torch.equal, run(other, "cpu"), right))
    one = some._replace(x=some.x[:, :1].expand_as(some.x), B=some.B[:1].expand_as(some.B))
    assert all(map(torch.equal, run(one, "cpu"), run(one.map(Tensor.contiguous), "cpu")))


def test_the_number_of_threads_changes_no_bit():
    some = drawn(t=80, c=300, n=4, dtype=torch.float32)
    weights = weights_of(some)
    assert threads_change_no_bit(lambda: [*run(some, "cpu"), *gradients(some, "cpu", weights)])


@pytest.mark.parametrize("sizes", [{"t": 0}, {"b": 0}], ids=str)
def test_nothing_is_legal(sizes):
    some = drawn(**sizes)
    ours, right = run(some, "cpu"), run(some, "torch")
    assert all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(ours, right, strict=True))
    assert ours[1].data_ptr() != some.memory.data_ptr() or not ours[1].numel()
    same(some)


@pytest.mark.parametrize("mask", [None, torch.tensor([[True, False, True, True]])])
def test_gradients_of_gradients_are_those_of_torch(mask):
    some = drawn(b=1, t=4, c=2, n=2).map(Tensor.requires_grad_)
    ours, right = (twice(run(some, backend, mask=mask), some) for backend in ("cpu", "torch"))
    assert close(ours, right, 1e-11)


def test_the_layer_takes_it_unless_a_form_is_asked_for(monkeypatch):
    layer, u = lv.layers.build("mamba", 16).double(), torch.randn(2, 9, 16, dtype=torch.float64)
    calls = []
    monkeypatch.setattr(selective, "_RUN", lambda *given: calls.append(1) or torch.ops.lavagna.selective_scan(*given))
    fused, right = layer(u), layer(u, form="recurrent", backend="torch")
    assert difference(fused.y, right.y) < 1e-12 and difference(fused.state.memory, right.state.memory) < 1e-12
    layer(u, backend="cpu")
    assert len(calls) == 2
    layer(u, form="recurrent", backend="cpu")
    layer(u, backend="torch")
    assert len(calls) == 2
