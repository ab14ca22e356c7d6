"""Whatever lies in memory in whatever way, the kernels read it as their own copy of it, or say what is wrong."""

import mmap
import sys

import pytest
import torch

import lavagna as lv
from by_hand import SAMPLES, WAYS
from definition import held
from lavagna.kernels.cpu.library import library
from layouts import LAYOUTS, as_real
from transitions import TRANSITIONS, Sizes, call, leaves

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

# Those whose backward pass has products of torch's.
BY_TORCH_TOO = ("lavagna::attention_step", "lavagna::linear_few", "lavagna::response")
# MAP_NORESERVE of Linux, which Python names from 3.13 on.
NOT_TAKEN = 0x4000
OPERATORS = [name for name in SAMPLES if "::" in name]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", ["whole", "both"])
@pytest.mark.parametrize("name", OPERATORS)
def test_a_view_gives_the_numbers_and_gradients_of_its_copy(name, layout, way):
    function, given = SAMPLES[name](WAYS[way])
    views = [layout(x.detach()) for x in given]
    kept = [(x.clone(), x.stride()) for x in views]
    results = []
    for prepare in (lambda x: x, lambda x: x.resolve_neg().resolve_conj().clone(memory_format=torch.contiguous_format)):
        own = [prepare(x).detach().requires_grad_() for x in views]
        outputs = function(*own)
        outputs = [as_real(y) for y in ([outputs] if isinstance(outputs, torch.Tensor) else outputs)]
        # Gradients that a sum sends are one number, spread; those of a reading of one column have gaps.
        for loss in (sum(y.sum() for y in outputs), sum(y[..., :1].square().sum() for y in outputs)):
            results.append([*outputs, *torch.autograd.grad(loss, own, retain_graph=True)])
    for ours, right in zip(results[:2], results[2:], strict=True):
        # Products by torch are taken in another order where a matrix lies otherwise.
        assert all(map(torch.allclose if name in BY_TORCH_TOO else torch.equal, ours, right))
    assert all(torch.equal(x, before) and x.stride() == stride for x, (before, stride) in zip(views, kept, strict=True))


@pytest.mark.parametrize("sizes", [(0, 3, 2, 4, 5), (1, 0, 2, 4, 5), (1, 3, 2, 0, 5), (1, 3, 2, 4, 0), (1, 3, 9, 0, 2)])
@pytest.mark.parametrize("rule", ["diagonal", "householder"])
def test_nothing_in_any_axis_is_what_torch_makes_of_it_and_its_gradient(sizes, rule):
    b, t, h, k, v = sizes
    results = []
    for backend in ("cpu", "torch"):
        torch.manual_seed(0)
        q, key, state = torch.randn(b, t, h, k), torch.randn(b, t, h, k), torch.randn(b, h, v, k)
        given = [q, key, torch.randn(b, t, h, v), state, torch.randn(b, t, h, k if rule == "diagonal" else 1)]
        q, key, value, state, part = (x.requires_grad_() for x in given)
        a = lv.diagonal(part) if rule == "diagonal" else lv.householder(key, part)
        output, last = lv.recur(a, q, key, value, state, form="recurrent", backend=backend)
        grads = torch.autograd.grad(output.sum() + last.sum(), (q, key, value, state, part), allow_unused=True)
        results.append([output, last, *grads])
    for ours, right in zip(*results, strict=True):
        assert right is None or (ours.shape == right.shape and torch.allclose(ours, right, atol=1e-6))


def test_no_heads_are_refused_by_name():
    none = torch.zeros(1, 3, 0, 4)
    with pytest.raises(ValueError, match="at least one head"):
        lv.recur(lv.identity(), none, none, none, backend="cpu")


@pytest.mark.parametrize("kind", [torch.float64, torch.float16, torch.int64])
@pytest.mark.parametrize("which", ["q", "k", "v"])
def test_what_is_of_another_dtype_is_refused_by_name(which, kind):
    x = torch.ones(1, 3, 2, 4)
    given = {"q": x, "k": x, "v": x} | {which: x.to(kind)}
    with pytest.raises(ValueError, match=f"must share one floating dtype.*{which} {kind}"):
        lv.recur(lv.identity(), *given.values(), backend="cpu")


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_parts_of_a_transition_and_the_state_may_have_a_dtype_of_their_own(kind):
    q, k, v = torch.randn(3, 1, 5, 2, 4, dtype=torch.bfloat16)
    g, beta, state = -torch.rand(1, 5, 2, 4).to(kind), torch.rand(1, 5, 2).to(kind), torch.randn(1, 2, 4, 4).to(kind)
    ours, right = (
        lv.recur(lv.gated_householder(g, k, beta), q, k, v, state, form="recurrent", backend=backend)
        for backend in ("cpu", "torch")
    )
    assert ours.output.dtype == right.output.dtype and ours.state.dtype == right.state.dtype
    assert torch.allclose(ours.state, right.state, rtol=1e-5, atol=1e-5)
    assert torch.allclose(ours.output.float(), right.output.float(), rtol=1e-2, atol=1e-2)


def far_apart(x, stride):
    """`x` (b, t, ..) with so many numbers between its steps, in memory of which only what is written is taken."""
    size = (x.numel() + (x.shape[1] - 1) * stride) * x.element_size()
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NOT_TAKEN)
    numbers = torch.frombuffer(room, dtype=x.dtype)
    strides = (x.stride(0), stride, *x.stride()[2:])
    return numbers.as_strided(x.shape, strides).copy_(x)


@pytest.mark.skipif(sys.platform != "linux", reason="memory that is named is taken here")
@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "lavagna::linear_few"])
def test_steps_that_lie_beyond_two_to_the_31_numbers_are_reached(name):
    function, given = SAMPLES[name](WAYS["whole"])
    given = [x.detach() for x in given]
    results = []
    for prepare in (lambda x: x, lambda x: far_apart(x, 2**30 + 3) if x.ndim > 2 and x.shape[1] == 5 else x):
        own = [prepare(x).requires_grad_() for x in given]
        outputs = function(*own)
        outputs = [as_real(y) for y in ([outputs] if isinstance(outputs, torch.Tensor) else outputs)]
        loss = sum(y.square().sum() for y in outputs)
        results.append([*outputs, *torch.autograd.grad(loss, own)])
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("values", [64, 65, 257, 320, 321, 577])
@pytest.mark.parametrize("heads", [1, 3])
def test_however_values_are_shared_out_no_part_is_empty(values, heads):
    some = call("gated householder", Sizes(b=1, t=40, h=1, hv=heads, k=32, v=values), device=torch.device("cpu"))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(8)
        held(some, 1e-12, form="recurrent", backend="cpu")
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", TRANSITIONS)
@pytest.mark.parametrize(
    "sizes", [Sizes(b=1, t=33, h=1, hv=2, k=16, v=20), Sizes(b=1, t=33, h=9, hv=9, k=3, v=2)], ids=str
)
def test_no_bit_depends_on_a_later_step(name, sizes):
    some = call(name, sizes, device=torch.device("cpu"), dtype=torch.float32)
    for cut in range(1, 33, 3):
        other = call(name, sizes, device=torch.device("cpu"), dtype=torch.float32)
        swapped = {
            id(x): torch.cat([x[:, :cut], y[:, cut:]], 1) for x, y in zip(leaves(some), leaves(other), strict=True)
        }
        a = some.a.map(lambda x, swapped=swapped: x if x.shape[1] == 1 else swapped[id(x)])
        mixed = (a, *(swapped[id(x)] for x in some[1:4]), some.state)
        one, two = (lv.recur(*each, form="recurrent", backend="cpu").output for each in (some, mixed))
        assert torch.equal(one[:, :cut], two[:, :cut])
