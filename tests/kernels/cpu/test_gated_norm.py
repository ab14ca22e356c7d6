"""The CPU kernel of the gated norm is the norm, forward and backward, with a gate in front, behind, or none."""

import pytest
import torch

from lavagna.kernels.cpu.library import library
from lavagna.modules import norm
from lavagna.modules.norm import GatedRMSNorm, GroupedRMSNorm, RMSNorm
from transitions import difference

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

NORMS = {
    "plain": lambda n, eps: RMSNorm(n, eps=eps),
    "without weights": lambda n, eps: RMSNorm(n, eps=eps, affine=False),
    "zero-centered": lambda n, eps: RMSNorm(n, eps=eps, zero_centered=True),
    "gated": lambda n, eps: GatedRMSNorm(n, eps=eps),
    "gated without weights": lambda n, eps: GatedRMSNorm(n, eps=eps, affine=False),
    "grouped": lambda n, eps: GroupedRMSNorm(n, groups=1 if n % 3 else 3, eps=eps),
    "grouped, norm first": lambda n, eps: GroupedRMSNorm(n, groups=1 if n % 3 else 3, norm_before_gate=True, eps=eps),
}
EVERY = pytest.mark.parametrize("name", NORMS)


def made(name, n=39, *, eps=1e-5, shape=(2, 35), dtype=torch.float64):
    layer = NORMS[name](n, eps)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    given = [torch.randn(*shape, n, dtype=dtype) for _ in range(2 if "g" in name.split()[0][0] else 1)]
    return layer.to(dtype), given


@pytest.fixture
def by_torch(monkeypatch):
    """Runs what it is given without the kernel."""

    def run(function, *given):
        with monkeypatch.context() as context:
            context.setattr(norm, "find_fused", lambda *_: None)
            return function(*given)

    return run


def gradients(layer, given):
    leaves = [*layer.parameters(), *(x.detach().requires_grad_() for x in given)]
    y = layer(*leaves[-len(given) :])
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return [y, *torch.autograd.grad((y * weight).sum(), leaves)]


@EVERY
@pytest.mark.parametrize("n", [1, 16, 39, 128])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_it_is_the_norm_and_its_gradients_are(name, n, eps, by_torch):
    layer, given = made(name, n, eps=eps)
    given[0][0, 3] = 0
    for ours, right in zip(gradients(layer, given), by_torch(gradients, layer, given), strict=True):
        assert difference(ours, right) < 1e-12 or (n == 1 and (ours - right).abs().max() < 1e-8)


@EVERY
def test_in_float32_it_is_at_most_twice_as_far_from_float64_as_torch(name, by_torch):
    layer, given = made(name, 300, shape=(4, 70), dtype=torch.float32)
    ours, torchs = gradients(layer, given), by_torch(gradients, layer, given)
    exact = gradients(layer.double(), [x.double() for x in given])
    for own, other, right in zip(ours, torchs, exact, strict=True):
        assert difference(own, right) <= max(2 * difference(other, right), 1e-6)


@EVERY
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(name, dtype):
    layer, given = made(name, dtype=dtype)
    ours = gradients(layer, given)
    assert all(part.dtype == dtype for part in ours)
    wide = gradients(layer.float(), [x.float() for x in given])
    assert torch.equal(ours[0], wide[0].to(dtype))
    assert all(difference(own, right) < 1e-2 for own, right in zip(ours, wide, strict=True))


@EVERY
def test_no_layout_and_no_number_of_threads_matters(name):
    layer, given = made(name, 39, shape=(60, 80), dtype=torch.float32)
    threads, right = torch.get_num_threads(), gradients(layer, given)
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for change in (lambda x: x.transpose(0, 2).contiguous().transpose(0, 2), lambda x: x.flip(1).flip(1)):
                found = gradients(layer, [change(x) for x in given])
                assert all(map(torch.equal, found, right))
    finally:
        torch.set_num_threads(threads)


@EVERY
def test_gates_of_any_size_leave_numbers(name):
    layer, given = made(name, dtype=torch.float32)
    for size in (-1e4, -90.0, 90.0, 1e4):
        given[-1][:, 1] = size
        assert all(part.isfinite().all() for part in gradients(layer, given))


@pytest.mark.parametrize("name", ["without weights", "gated", "grouped"])
def test_gradients_of_gradients_are_those_of_torch(name, by_torch):
    layer, given = made(name, 6, shape=(3,))
    leaves = [*layer.parameters(), *(x.requires_grad_() for x in given)]

    def twice():
        first = torch.autograd.grad(layer(*given).square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(part.square().sum() for part in first), leaves)

    assert max(map(difference, twice(), by_torch(twice))) < 1e-11


def test_nothing_is_legal():
    for shape in ((0, 3), (2, 0)):
        layer, given = made("gated", shape=shape)
        assert [part.shape for part in gradients(layer, given)][0] == (*shape, 39)
