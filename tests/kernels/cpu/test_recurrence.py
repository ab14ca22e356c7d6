"""The CPU kernel of the recurrence is the definition, forward and backward, whatever the layout of what it is given."""

import pytest
import torch

import lavagna as lv
from definition import held
from lavagna.algebra import dense
from lavagna.kernels.cpu import operands
from lavagna.kernels.cpu.library import library
from over_steps import threads_change_no_bit
from transitions import TRANSITIONS, Call, Sizes, call, difference, leaves

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

EVERY = pytest.mark.parametrize("name", TRANSITIONS)
CPU = torch.device("cpu")
# Few values run in rows, many in columns; 64 steps are a segment; 33 fills no vector.
SIZES = [
    Sizes(),
    Sizes(b=1, t=1, h=1, hv=1, k=1, v=1),
    Sizes(b=2, t=65, h=1, hv=2, k=16, v=1),
    Sizes(b=1, t=130, h=2, hv=2, k=33, v=65),
    Sizes(b=3, t=9, h=1, hv=1, k=64, v=40),
]


def run(some: Call, backend: str, **options):
    return lv.recur(*some, form="recurrent", backend=backend, **options)


def gradients(some: Call, backend: str, *, d_output, d_last, **options):
    wanted = leaves(some)
    for x in wanted:
        x.requires_grad_()
    out = run(some, backend, **options)
    loss = (out.output * d_output).sum() + (out.state * d_last).sum()
    return torch.autograd.grad(loss.real if loss.is_complex() else loss, wanted, allow_unused=True)


def same_gradients(some: Call, tolerance: float, **options):
    shape = run(some, "torch", **options)
    weights = {"d_output": torch.randn_like(shape.output), "d_last": torch.randn_like(shape.state)}
    ours, right = (gradients(some, backend, **weights, **options) for backend in ("cpu", "torch"))
    for a, b in zip(ours, right, strict=True):
        assert (a is None) == (b is None)
        assert a is None or difference(a, b) < tolerance


@EVERY
@pytest.mark.parametrize("read", ["after", "before"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.sampled(2)
def test_it_is_the_definition_and_its_gradients_are(name, sizes, read):
    held(call(name, sizes, device=CPU), 1e-12, read=read, form="recurrent", backend="cpu")


@EVERY
@pytest.mark.parametrize("read", ["after", "before"])
def test_a_single_step_on_whole_vectors_is_the_definition_and_a_masked_one_does_nothing(name, read):
    some = call(name, Sizes(b=2, t=1, h=2, hv=4, k=32, v=6), device=CPU)
    ours = run(some, "cpu", read=read)
    for one, right in zip(ours, dense.recur(*some, read=read), strict=True):
        assert difference(one, right) < 1e-12
    output, state = run(some, "cpu", read=read, mask=torch.tensor([[True], [False]]))
    assert torch.equal(state[0], ours.state[0]) and torch.equal(state[1], some.state[1].to(state.dtype))
    assert not output[1].any()


@EVERY
@pytest.mark.parametrize("sizes", SIZES[2:4], ids=str)
def test_in_float32_it_is_at_most_twice_as_far_from_float64_as_torch(name, sizes):
    wide = call(name, sizes, device=CPU)
    narrow = lower(wide, torch.float32)
    exact, ours, torchs = run(wide, "cpu"), run(narrow, "cpu"), run(narrow, "torch")
    for own, other, right in zip(ours, torchs, exact, strict=True):
        assert difference(own, right) <= max(2 * difference(other, right), 1e-6)
    weights = {"d_output": torch.randn_like(exact.output), "d_last": torch.randn_like(exact.state)}
    right = gradients(wide, "cpu", **weights)
    low = {key: x.to(dtype_like(x, torch.float32)) for key, x in weights.items()}
    ours, torchs = (gradients(narrow, backend, **low) for backend in ("cpu", "torch"))
    for own, other, wanted in zip(ours, torchs, right, strict=True):
        assert wanted is None or difference(own, wanted) <= max(2 * difference(other, wanted), 2e-6)


@pytest.mark.parametrize("erases", [False, True])
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.02, 0.2, 1.5, None])
def test_what_fades_alike_in_all_keys_errs_no_more_over_a_thousand_steps_at_any_rate(rate, erases):
    # Without a rate each step has its own, from those that keep all to those that keep nothing.
    rates = 10 ** (7 * torch.rand(1, 1001, 2, 1) - 6) if rate is None else torch.full((1, 1, 2, 1), rate)
    q, k, v = torch.randn(3, 1, 1001, 2, 64)
    k, beta = k / k.norm(dim=-1, keepdim=True), torch.rand(1, 1001, 2)

    def of(dtype, backend):
        fading, key = -rates.to(dtype), k.to(dtype)
        a = lv.gated_householder(fading, key, beta.to(dtype)) if erases else lv.scalar(fading)
        return lv.recur(a, q.to(dtype), key, v.to(dtype), form="recurrent", backend=backend)

    exact, ours, torchs = of(torch.float64, "torch"), of(torch.float32, "cpu"), of(torch.float32, "torch")
    for own, other, right in zip(ours, torchs, exact, strict=True):
        assert (own - right).norm() <= 2 * (other - right).norm()


def dtype_like(x, real):
    return (torch.complex64 if real == torch.float32 else torch.complex128) if x.is_complex() else real


def lower(some: Call, dtype: torch.dtype) -> Call:
    cast = lv.algebra.transition.shared(lambda x: x.detach().to(dtype_like(x, dtype)))
    return Call(some.a.map(cast), *map(cast, some[1:]))


@EVERY
@pytest.mark.parametrize("read", ["after", "before"])
def test_masks_and_borders_in_any_place_change_nothing_of_the_rest(name, read):
    some = call(name, Sizes(b=1, t=70, h=1, hv=2, k=5, v=9), device=CPU)
    start = torch.randn(4, *some.state.shape[1:], dtype=some.state.dtype)
    mask = torch.rand(1, 70) > 0.3
    mask[0, 20:40] = False
    for options in (
        {"mask": mask},
        {"cu_seqlens": [0, 3, 3, 66, 70]},
        {"mask": mask, "cu_seqlens": [0, 30, 40, 41, 70]},
    ):
        given = some._replace(state=start) if "cu_seqlens" in options else some
        same_gradients(given, 1e-11, read=read, **options)
        ours, right = (run(given, backend, read=read, **options) for backend in ("cpu", "torch"))
        assert max(map(difference, ours, right)) < 1e-12
        # Whatever a masked step holds.
        if "mask" in options:
            spoiled = given._replace(v=torch.where(mask[..., None, None], given.v, torch.nan).detach())
            assert all(map(torch.equal, run(spoiled, "cpu", read=read, **options), ours))


@pytest.mark.parametrize("name", ["diagonal", "gated householder", "dplr", "diagonal complex"])
def test_no_layout_of_what_comes_matters(name):
    some = call(name, device=CPU)
    right = run(some, "cpu")
    turned = shared_map(some, lambda x: x.transpose(1, 2).contiguous().transpose(1, 2))
    gaps = shared_map(some, lambda x: torch.stack([x, x * torch.nan], -1)[..., 0])
    backward = shared_map(some, lambda x: x.flip(1).flip(1))
    for other in (turned, gaps, backward):
        assert all(map(torch.equal, run(other, "cpu"), right))
    negated = some._replace(q=torch.complex(torch.zeros_like(some.q.real), -some.q.real).conj().imag)
    assert (
        negated.q.is_neg()
        and difference(run(negated, "cpu").output, run(some._replace(q=some.q.real), "cpu").output) == 0
    )


def shared_map(some: Call, function) -> Call:
    mapped = lv.algebra.transition.shared(function)
    return Call(some.a.map(mapped), *map(mapped, some[1:]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    some = call("gated householder", Sizes(t=70, k=16, v=32), device=CPU, dtype=torch.float32)
    halved = shared_map(some, lambda x: x.to(dtype))
    ours, right = run(halved, "cpu"), run(shared_map(halved, torch.Tensor.float), "cpu")
    assert ours.output.dtype == dtype and ours.state.dtype == torch.float32
    assert torch.equal(ours.output, right.output.to(dtype)) and torch.equal(ours.state, right.state)
    same_gradients(halved, {torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype])


@pytest.mark.parametrize("sizes", [Sizes(t=70, k=16, v=32), Sizes(b=1, t=70, h=40, hv=40, k=2, v=3)])
def test_pages_of_any_size_hold_the_same_results(sizes, monkeypatch):
    some, found = call("diagonal", sizes, device=CPU), []
    weights = {"d_output": torch.randn_like(some.v), "d_last": torch.randn_like(run(some, "cpu").state)}
    for large in (operands.LARGE, 1):
        monkeypatch.setattr(operands, "LARGE", large)
        found.append([*run(some, "cpu"), *gradients(some, "cpu", **weights)])
    assert all(a is b is None or torch.equal(a, b) for a, b in zip(*found, strict=True))


@EVERY
def test_the_number_of_threads_changes_no_bit(name):
    some = call(name, Sizes(b=1, t=130, h=1, hv=2, k=64, v=130), device=CPU, dtype=torch.float32)
    weights = {
        "d_output": torch.randn_like(run(some, "cpu").output),
        "d_last": torch.randn_like(run(some, "cpu").state),
    }
    assert threads_change_no_bit(lambda: [*run(some, "cpu"), *gradients(some, "cpu", **weights)])


@EVERY
def test_any_cut_is_the_whole(name):
    some = call(name, Sizes(t=33, v=20), device=CPU)
    whole = run(some, "cpu")
    for cut in (0, 1, 8, 32, 33):
        one = run(piece(some, 0, cut), "cpu")
        two = run(piece(some, cut, 33)._replace(state=one.state), "cpu")
        assert difference(torch.cat([one.output, two.output], 1), whole.output) < 1e-13
        assert difference(two.state, whole.state) < 1e-13


def piece(some: Call, start: int, end: int) -> Call:
    def cut(x):
        return x if x.shape[1] == 1 else x[:, start:end]

    return Call(some.a.map(cut), *map(cut, some[1:4]), some.state)


@pytest.mark.parametrize("sizes", [Sizes(t=0), Sizes(b=0), Sizes(v=0)], ids=str)
@pytest.mark.parametrize("name", ["identity", "dplr"])
def test_nothing_is_legal(name, sizes):
    some = call(name, sizes, device=CPU)
    ours, right = run(some, "cpu"), run(some, "torch")
    assert all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(ours, right, strict=True))
    assert ours.state.data_ptr() != some.state.data_ptr() or not ours.state.numel()


@pytest.mark.parametrize("decay", [-torch.inf, -1e4, -30.0, 0.0, 1.0])
def test_walls_of_decay_and_growth_are_exact(decay):
    some = call("diagonal", Sizes(t=20, v=20), device=CPU, dtype=torch.float32)
    log_decay = some.a.log_decay.clone()
    log_decay[:, 7] = decay
    some = some._replace(a=lv.diagonal(log_decay), state=some.state * 1e10)
    assert max(map(difference, run(some, "cpu"), run(shared_map(some, torch.Tensor.double), "cpu"))) < 1e-6
    assert all(x is None or x.isfinite().all() for x in gradients(some, "cpu", d_output=some.v, d_last=some.state * 0))


@pytest.mark.parametrize(
    "name", ["scalar constant", "diagonal with step", "gated householder", "dplr", "diagonal complex"]
)
def test_gradients_of_gradients_are_those_of_torch(name):
    some = call(name, Sizes(b=1, t=3, h=1, hv=2, k=2, v=2), device=CPU)
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


@pytest.mark.parametrize("lost", ["log_decay", "step"])
def test_what_a_masked_step_holds_reaches_no_gradient_of_a_decay_in_steps(lost):
    parts = {"log_decay": -torch.rand(1, 5, 1, 4), "step": torch.rand(1, 5, 1, 1)}
    other = "step" if lost == "log_decay" else "log_decay"
    parts[other] = parts[other][:, :1]
    mask = torch.tensor([[True, True, False, True, True]])
    found = []
    for what in (torch.nan, 0.5):
        given = {name: part.clone() for name, part in parts.items()}
        given[lost][:, 2] = what
        leaves = [part.requires_grad_() for part in given.values()]
        a = lv.diagonal(-given["log_decay"].abs(), step=given["step"])
        q, k, v = torch.ones(3, 1, 5, 1, 4)
        found.append(torch.autograd.grad(lv.recur(a, q, k, v, backend="cpu", mask=mask).output.sum(), leaves))
    for one, right in zip(*found, strict=True):
        assert one.isfinite().all() and torch.equal(one, right)


def test_a_half_decay_in_steps_has_gradients():
    log_decay = (-torch.rand(1, 5, 1, 4)).half().requires_grad_()
    q, k, v = torch.ones(3, 1, 5, 1, 4)
    lv.recur(lv.diagonal(log_decay, step=torch.ones(1, 1, 1, 1)), q, k, v, backend="cpu").output.sum().backward()
    assert log_decay.grad is not None and log_decay.grad.isfinite().all()


def test_what_it_has_no_rule_for_falls_to_torch_unless_it_was_asked_for():
    some = call("scalar", device=CPU)

    def read(q, backend):
        return lv.recur(some.a, q, *some[2:], backend=backend).output.sum()

    assert torch.equal(
        torch.func.grad(lambda q: read(q, "auto"))(some.q), torch.func.grad(lambda q: read(q, "torch"))(some.q)
    )
    with pytest.raises(ValueError, match="torch.func"):
        torch.func.grad(lambda q: read(q, "cpu"))(some.q)
    with pytest.raises(ValueError, match="no kernel for the scan form, but for recurrent and auto. Use"):
        lv.recur(*some, form="scan", backend="cpu")


def test_a_chunk_changes_nothing_in_the_kernel_which_has_none():
    some = call("gated householder", device=CPU)
    plain, chunked = (lv.recur(*some, backend="cpu", chunk=chunk) for chunk in (None, 3))
    assert torch.equal(plain.output, chunked.output) and torch.equal(plain.state, chunked.state)


def test_nothing_of_the_callers_is_changed():
    some = call("dplr", device=CPU)
    before = [x.clone() for x in leaves(some)]
    run(some, "cpu")
    assert all(map(torch.equal, leaves(some), before))
