"""The CPU kernel for narrow memories and many heads is the definition, forward and backward, in any layout."""

import itertools

import pytest
import torch

import lavagna as lv
from definition import held
from lavagna.algebra.transition import shared
from lavagna.kernels.cpu import narrow
from lavagna.kernels.cpu.library import library
from over_steps import at_most_twice_as_far, threads_change_no_bit
from transitions import TRANSITIONS, Call, Sizes, call, difference, leaves

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

PLAIN = ["identity", "scalar", "scalar constant", "diagonal", "diagonal with step", "diagonal complex"]
ERASING = ["householder", "gated householder", "gated householder, diagonal"]
EVERY = pytest.mark.parametrize("name", PLAIN + ERASING)
CPU = torch.device("cpu")
# Heads that fill no vector, or more than one and a bit; one key for all of them, one each, one for two.
SIZES = [
    Sizes(b=2, t=33, h=1, hv=40, k=1, v=1),
    Sizes(b=2, t=7, h=20, hv=40, k=1, v=1),
    Sizes(b=1, t=34, h=33, hv=33, k=1, v=2),
    Sizes(b=1, t=65, h=1, hv=11, k=5, v=3),
    Sizes(b=1, t=5, h=48, hv=48, k=16, v=1),
    Sizes(b=2, t=1, h=9, hv=9, k=3, v=1),
]


def run(some: Call, backend: str, **options):
    return lv.recur(*some, form="recurrent", backend=backend, **options)


def gradients(some: Call, backend: str, wanted=None, **options):
    """Of a fixed reading of output and state, for every tensor of the call or those wanted."""
    for x in leaves(some):
        x.requires_grad_(wanted is None or any(x is y for y in wanted))
    generator = torch.Generator().manual_seed(1)
    loss = 0.0
    for x in run(some, backend, **options):
        weight = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        loss = loss + (torch.view_as_real(x).sum(-1) if x.is_complex() else x).mul(weight).sum()
    return torch.autograd.grad(loss, leaves(some) if wanted is None else wanted, materialize_grads=True)


def mapped(some: Call, function) -> Call:
    once = shared(function)
    return Call(some.a.map(once), *map(once, some[1:]))


def same(some: Call, tolerance=1e-11, **options):
    for one, other in zip(*(run(some, backend, **options) for backend in ("cpu", "torch")), strict=True):
        assert difference(one, other) < tolerance
    for one, other in zip(*(gradients(some, backend, **options) for backend in ("cpu", "torch")), strict=True):
        assert difference(one, other) < tolerance


def test_it_is_taken_for_what_is_narrow_and_erases_nothing_or_along_its_own_key():
    for name, sizes in itertools.product(TRANSITIONS, SIZES):
        some = call(name, sizes, device=CPU)
        assert narrow.fits(some.a, some.k, some.v) == (name in PLAIN + ERASING)
    for sizes in (Sizes(hv=4), Sizes(h=1, hv=40, k=16, v=16), Sizes(h=1, hv=40, k=0), Sizes(h=1, hv=40, v=0)):
        some = call("scalar", sizes, device=CPU)
        assert not narrow.fits(some.a, some.k, some.v)


@EVERY
@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.sampled(2)
def test_it_is_the_definition_and_its_gradients_are(name, sizes, read):
    held(call(name, sizes, device=CPU), 1e-12, read=read, form="recurrent", backend="cpu")


@pytest.mark.parametrize("name", ERASING)
@pytest.mark.parametrize("read", ["after", "before"])
def test_complex_keys_erase_as_they_are_defined_to(name, read):
    some = mapped(call(name, SIZES[3], device=CPU), lambda x: torch.complex(x, x.flip(-1)) / 2)
    held(some, 1e-12, read=read, form="recurrent", backend="cpu")


@EVERY
@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[3]], ids=str)
def test_masks_and_borders_in_any_place_change_nothing_of_the_rest(name, read, sizes):
    some = call(name, sizes._replace(b=1, t=70), device=CPU)
    start = torch.randn(4, *some.state.shape[1:], dtype=some.state.dtype)
    mask = torch.rand(1, 70) > 0.3
    mask[0, 20:40] = False
    real = mask[..., None, None]
    for options in (
        {"mask": mask},
        {"cu_seqlens": [0, 3, 3, 66, 70]},
        {"mask": mask, "cu_seqlens": [0, 30, 40, 41, 70]},
    ):
        given = some._replace(state=start) if "cu_seqlens" in options else some
        same(given, read=read, **options)
        if "mask" in options:
            spoiled = mapped(given, lambda x: x.detach() if x.shape[1] != 70 else torch.where(real, x, torch.nan))
            assert all(
                map(torch.equal, run(spoiled, "cpu", read=read, **options), run(given, "cpu", read=read, **options))
            )
            assert all(x.isfinite().all() for x in gradients(spoiled, "cpu", read=read, **options))


@EVERY
def test_in_float32_it_is_at_most_twice_as_far_from_float64_as_torch(name):
    for sizes in (SIZES[0], SIZES[4]._replace(t=130)):
        some = call(name, sizes, device=CPU)
        low = mapped(some, lambda x: x.to(torch.complex64 if x.is_complex() else torch.float32))
        exact = mapped(low, lambda x: x.to(torch.complex128 if x.is_complex() else torch.float64))
        for find in (run, gradients):
            assert at_most_twice_as_far(find(low, "cpu"), find(low, "torch"), find(exact, "torch"))


def test_a_slow_decay_is_not_rounded_over_a_long_text():
    """Of a state of one and writes of one, exp(l t) + (1 - exp(l t)) / (1 - exp(l)) is left after t steps."""
    log_decay, steps = torch.full((1, 20000, 16, 1), -3e-6), 20000
    one = torch.ones(1, steps, 1, 1)
    left = log_decay.double().sum(1).exp()
    right = left - torch.expm1(log_decay.double().sum(1)) / -torch.expm1(log_decay[:, 0].double())
    for given in (log_decay, log_decay[:, :1], log_decay + 0j):
        state = torch.ones(1, 16, 1, 1, dtype=given.dtype, requires_grad=True)
        found = lv.recur(lv.scalar(given), one, one, one.expand(-1, -1, 16, -1), state, backend="cpu").state
        assert difference(found, right.unsqueeze(-1)) < 2e-5
        (gradient,) = torch.autograd.grad(found.real.sum(), state)
        assert difference(gradient.real, left.unsqueeze(-1)) < 2e-5


@EVERY
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[4]], ids=str)
def test_any_cut_is_the_whole_to_the_bit(name, sizes):
    some = call(name, sizes._replace(t=40), device=CPU, dtype=torch.float32)
    whole = run(some, "cpu")
    for cut in (0, 1, 8, 33, 40):
        one = run(piece(some, 0, cut), "cpu")
        two = run(piece(some, cut, 40)._replace(state=one.state), "cpu")
        assert torch.equal(torch.cat([one.output, two.output], 1), whole.output) and torch.equal(two.state, whole.state)


def piece(some: Call, start: int, end: int) -> Call:
    cut = shared(lambda x: x if x.shape[1] == 1 else x[:, start:end])
    return Call(some.a.map(cut), *map(cut, some[1:4]), some.state)


@EVERY
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[2], SIZES[4]], ids=str)
def test_the_number_of_threads_changes_no_bit(name, sizes):
    some = call(name, sizes._replace(t=100, h=min(sizes.h, 1) if sizes.h == 1 else 1040, hv=1040), device=CPU)
    some = mapped(some, lambda x: x.to(torch.complex64 if x.is_complex() else torch.float32))
    assert threads_change_no_bit(lambda: [*run(some, "cpu"), *gradients(some, "cpu")])


@EVERY
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[1], SIZES[4]], ids=str)
def test_no_layout_of_what_comes_matters(name, sizes):
    some = call(name, sizes, device=CPU, dtype=torch.float32)
    right = run(some, "cpu")
    for function in (
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: torch.stack([x, x * torch.nan], -1)[..., 0],
        lambda x: x.flip(2).flip(2),
        lambda x: x.conj().resolve_conj().conj(),
        lambda x: torch.cat([x, x[:, :, :3] * torch.nan], 2)[:, :, : x.shape[2]],
    ):
        assert all(map(torch.equal, run(mapped(some, function), "cpu"), right))
    still = some._replace(v=some.v[:, :1].expand_as(some.v), q=some.q[:, :1].expand_as(some.q))
    assert all(map(torch.equal, run(still, "cpu"), run(mapped(still, torch.Tensor.contiguous), "cpu")))
    same(mapped(still, lambda x: x.to(torch.complex128 if x.is_complex() else torch.float64)))


@pytest.mark.parametrize("name", ["scalar", "diagonal with step", "householder"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(name, dtype):
    for sizes in (SIZES[0], SIZES[4]):
        halved = mapped(call(name, sizes, device=CPU, dtype=torch.float32), lambda x: x.to(dtype))
        ours, right = run(halved, "cpu"), run(mapped(halved, torch.Tensor.float), "cpu")
        assert ours.output.dtype == dtype and ours.state.dtype == torch.float32
        assert torch.equal(ours.output, right.output.to(dtype)) and torch.equal(ours.state, right.state)
        for own, other in zip(
            gradients(halved, "cpu"), gradients(mapped(halved, torch.Tensor.float), "cpu"), strict=True
        ):
            assert own.dtype == dtype and difference(own, other) < 1e-2


@EVERY
def test_what_is_not_asked_for_changes_nothing_of_the_rest(name):
    some = call(name, SIZES[0], device=CPU)
    every = leaves(some)
    right = dict(zip(map(id, every), gradients(some, "cpu"), strict=True))
    for wanted in itertools.combinations(every, 2):
        found = gradients(some, "cpu", wanted)
        assert all(torch.equal(own, right[id(x)]) for x, own in zip(wanted, found, strict=True))


@pytest.mark.parametrize("decay", [-torch.inf, -1e4, -30.0, 0.0, 0.3, 1.0])
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[4]], ids=str)
def test_walls_of_decay_and_growth_are_exact(decay, sizes):
    some = call("diagonal", sizes, device=CPU, dtype=torch.float32)
    log_decay = some.a.log_decay.clone()
    log_decay[:, sizes.t // 2] = decay
    some = some._replace(a=lv.diagonal(log_decay), state=some.state * 1e10)
    assert max(map(difference, run(some, "cpu"), run(mapped(some, torch.Tensor.double), "cpu"))) < 1e-6
    assert all(x.isfinite().all() for x in gradients(some, "cpu"))


@pytest.mark.parametrize("name", ["identity", "scalar constant", "diagonal with step"])
@pytest.mark.parametrize("sizes", [SIZES[0]._replace(t=0), SIZES[0]._replace(b=0)], ids=str)
def test_nothing_is_legal(name, sizes):
    some = call(name, sizes, device=CPU)
    ours, right = run(some, "cpu"), run(some, "torch")
    assert all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(ours, right, strict=True))
    assert ours.state.data_ptr() != some.state.data_ptr() or not ours.state.numel()
    assert all(map(torch.equal, gradients(some, "cpu"), gradients(some, "torch")))


@pytest.mark.parametrize("name", ["scalar constant", "diagonal with step", "diagonal complex", "gated householder"])
def test_gradients_of_gradients_are_those_of_torch(name):
    some = call(name, Sizes(b=1, t=3, h=1, hv=9, k=2, v=1), device=CPU)
    wanted = leaves(some)
    for x in wanted:
        x.requires_grad_()

    def twice(backend):
        out = run(some, backend)
        loss = out.output.abs().square().sum() + out.state.abs().square().sum()
        first = torch.autograd.grad(loss, wanted, create_graph=True)
        return torch.autograd.grad(sum(x.abs().square().sum() for x in first), wanted)

    for ours, right in zip(twice("cpu"), twice("torch"), strict=True):
        assert difference(ours, right) < 1e-11


def test_nothing_of_the_callers_is_changed():
    some = call("diagonal with step", SIZES[3], device=CPU)
    before = [x.clone() for x in leaves(some)]
    gradients(some, "cpu")
    assert all(map(torch.equal, leaves(some), before))


def test_layers_of_narrow_memories_take_it(monkeypatch):
    calls = []
    monkeypatch.setattr(narrow, "RUN", lambda *given: calls.append(1) or torch.ops.lavagna.narrow_recurrence(*given))
    for name in ("s5", "rg_lru", "rwkv4", "mamba", "s4d", "longhorn"):
        layer, x = lv.layers.build(name, 32).double(), torch.randn(2, 9, 32, dtype=torch.float64)
        calls.clear()
        ours, right = layer(x, form="recurrent"), layer(x, form="recurrent", backend="torch")
        assert calls and difference(ours.y, right.y) < 1e-11
