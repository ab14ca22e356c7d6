"""Every backward pass that is written by hand has gradients of its own, which are the derivative."""

import importlib
from pathlib import Path

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import lavagna as lv
from by_hand import OF_TEXTS, SAMPLES, WAYS
from lavagna.derivatives import only_values
from lavagna.kernels.cpu.library import library


def written_by_hand():
    """Every function of torch's graph that the package defines, and every operator that has a gradient."""
    root = Path(lv.__file__).parent
    for file in root.rglob("*.py"):
        if file.stem not in ("__main__", "__init__"):
            importlib.import_module(".".join(["lavagna", *file.relative_to(root).with_suffix("").parts]))
    found, kinds = set(), [torch.autograd.Function]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind.__module__.split(".")[0] == "lavagna":
            found.add(f"{kind.__module__}.{kind.__qualname__}")
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    operators = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith("lavagna::")]
    return found | {name for name in operators if has(name, "Autograd")}


def nodes(outputs):
    """The names in the graph of some tensors."""
    waiting, seen = [x.grad_fn for x in outputs], set()
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [one for one, _ in node.next_functions]
    return {node.name() for node in seen}


def node_of(name):
    if "::" in name:
        return f"GeneratedBackwardFor_{name.replace('::', '_')}_defaultBackward"
    return f"{name.rpartition('.')[2]}Backward"


def test_every_backward_pass_written_by_hand_has_a_sample():
    assert written_by_hand() == SAMPLES.keys()


@pytest.mark.parametrize(
    ("name", "way"), [(name, way) for name in SAMPLES for way in WAYS if way == "whole" or name in OF_TEXTS]
)
@pytest.mark.filterwarnings("ignore:Input #")
def test_gradients_of_gradients_are_the_derivative(name, way):
    if "::" in name and library().functions is None:
        pytest.skip(f"the CPU kernels are {library().level}")
    function, given = SAMPLES[name](WAYS[way])
    outputs = function(*given)
    outputs = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    assert node_of(name) in nodes(outputs)
    loss = sum(torch.view_as_real(x).square().sum() if x.is_complex() else x.square().sum() for x in outputs)
    plain = torch.autograd.grad(loss, given, retain_graph=True)
    again = torch.autograd.grad(loss, given, create_graph=True)
    low = given[0].dtype == torch.float32
    for one, other in zip(plain, again, strict=True):
        assert torch.allclose(one, other, rtol=1e-4 if low else 1e-9, atol=1e-4 if low else 1e-10)
    precision = {"eps": 1e-2, "atol": 1e-3, "rtol": 1e-3} if low else {}
    assert gradgradcheck(function, given, fast_mode=True, **precision)


@pytest.mark.parametrize("name", [name for name in SAMPLES if "::" in name])
def test_derivatives_forward_of_a_kernel_are_refused_and_not_lost(name):
    if library().functions is None:
        pytest.skip(f"the CPU kernels are {library().level}")
    function, given = SAMPLES[name](WAYS["whole"])
    for values in ([x.detach() for x in given], given):
        with pytest.raises(ValueError, match=r"no rule for (torch\.func|forward-mode derivatives)"):
            torch.func.jvp(function, tuple(values), tuple(values))
        with torch.autograd.forward_ad.dual_level(), pytest.raises(ValueError, match="no rule for forward-mode"):
            function(*(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)) for x in values))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_a_compiler_that_carries_derivatives_forward_loses_none():
    q, k, v = torch.randn(3, 1, 5, 2, 4, dtype=torch.float64)
    a, layer = lv.identity(), lv.layers.build("mamba", 16).double()
    x = torch.randn(1, 5, 16, dtype=torch.float64)
    for function, given in ((lambda q: lv.recur(a, q, k, v).output, q), (lambda x: layer(x).y, x)):

        def moved(given, function=function):
            return torch.func.jvp(function, (given,), (torch.ones_like(given),))[1]

        right = moved(given)
        assert right.any() and torch.allclose(torch.compile(moved, backend="aot_eager")(given), right)


class Onlooker(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


LOOKING_ON = {
    "a dispatch mode": Onlooker,
    "counted operations": lambda: FlopCounterMode(display=False),
    "fake tensors": FakeTensorMode,
    "a default device": lambda: torch.device("cpu"),
    "a profiler": lambda: torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
    "forward derivatives": torch.autograd.forward_ad.dual_level,
}


@pytest.mark.parametrize("way", LOOKING_ON)
def test_an_operator_that_somebody_looks_on_at_is_wanted_for_more_than_values(way):
    x = torch.randn(3)
    with LOOKING_ON[way]():
        assert not only_values((x,))
    assert only_values((x,))


def test_so_is_one_of_which_gradients_or_traces_are_wanted():
    x, weight = torch.randn(3), torch.nn.Parameter(torch.randn(3))
    assert only_values((x, None, True)) and not only_values((x, weight))
    for nothing_kept in (torch.no_grad, torch.inference_mode):
        with nothing_kept():
            assert only_values((x, weight))
    assert not only_values((x, FakeTensorMode().from_tensor(x)))
    found = []

    def function(x):
        found.append(only_values((x,)))
        return x.sum()

    for transform in (torch.func.grad, torch.func.vmap, torch.func.functionalize):
        transform(function)(x)
    with pytest.warns(DeprecationWarning):
        torch.jit.trace(function, (x,), check_trace=False)
    assert found and not any(found)
    compiled = torch.compile(lambda x: x + only_values((x,)), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), x)
