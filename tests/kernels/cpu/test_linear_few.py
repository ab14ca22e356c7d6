"""The linear map of few rows is the map, in every dtype, shape and layout, whatever the number of threads."""

import pytest
import torch

from lavagna.kernels.cpu import linear_few as module
from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.linear_few import fits, linear_few, quantized
from over_steps import by_threads

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

KINDS = ["float32", "bfloat16", "int8"]
# No column, less than a chunk, a chunk and a bit, whole chunks, prefetched in the row; rows that fill no group.
SHAPES = [(1, 1), (3, 7), (4, 32), (5, 33), (17, 129), (1, 256), (66, 768), (9, 4097), (0, 5), (5, 0)]


def made(kind: str, rows: int, n: int, k: int):
    x, weight, bias = torch.randn(rows, k), torch.randn(n, k), torch.randn(n)
    if kind == "int8":
        return x, *quantized(weight), bias
    dtype = getattr(torch, kind)
    return x.to(dtype), weight.to(dtype), None, bias.to(dtype)


def exact(x, weight, scale, bias):
    wide = weight.double() if scale is None else weight.double() * scale.double()[:, None]
    return x.double() @ wide.T + (0 if bias is None else bias.double())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 6])
def test_it_is_the_map(rows, shape, kind):
    x, weight, scale, bias = made(kind, rows, *shape)
    right, full = (
        exact(x, weight, scale, bias),
        (weight.abs().double() if scale is None else weight.abs() * scale[:, None]),
    )
    y = linear_few(x, weight, bias, scale)
    assert y.dtype == x.dtype and y.shape == right.shape
    size = x.abs().double() @ full.double().T + bias.abs().double()
    # Sums in float32, then one rounding to bfloat16.
    assert ((y - right).abs() <= 1e-6 * size + (2**-8 * right.abs() if kind == "bfloat16" else 0)).all()
    assert torch.equal(linear_few(x, weight, torch.zeros_like(bias), scale), linear_few(x, weight, None, scale))


@pytest.mark.parametrize("kind", KINDS)
def test_neither_threads_nor_other_rows_change_a_bit(kind):
    x, weight, scale, bias = made(kind, 4, 1037, 769)

    def by_rows():
        return [torch.cat([linear_few(part, weight, bias, scale) for part in x.split(rows)]) for rows in (1, 2, 3, 4)]

    found = [one for own in by_threads(by_rows) for one in own]
    assert all(torch.equal(one, found[0]) for one in found[1:])


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_beside_the_weights_is_not_read_into_the_sums(kind):
    x, weight, scale, bias = made(kind, 2, 7, 37)
    beside = torch.full((9, 50), 127 if kind == "int8" else torch.nan).to(weight.dtype)
    beside[1:8, 3:40] = weight
    right = linear_few(x, weight, bias, scale)
    assert torch.equal(linear_few(x, beside[1:8, 3:40], bias, scale), right)


@pytest.mark.parametrize("kind", KINDS)
def test_no_layout_of_what_comes_matters(kind):
    x, weight, scale, bias = made(kind, 3, 12, 40)
    right = linear_few(x, weight, bias, scale)
    assert torch.equal(linear_few(x, weight.T.contiguous().T, bias, scale), right)
    assert torch.equal(linear_few(x.T.contiguous().T, weight, bias, scale), right)
    assert torch.equal(linear_few(x[:, None], weight, bias, scale), right[:, None])
    assert torch.equal(linear_few(x[0], weight, bias, scale), right[0])
    assert torch.equal(linear_few(x[:1].expand(3, -1), weight, bias, scale), right[:1].expand(3, -1))


def test_not_a_number_and_infinity_go_through():
    weight, x = torch.ones(8, 40), torch.ones(1, 40)
    weight[3, 39], weight[5, 0] = torch.nan, torch.inf
    y = linear_few(x, weight)[0]
    assert y[3].isnan() and y[5] == torch.inf and (y[[0, 1, 2, 4, 6, 7]] == 40).all()


def test_quantized_weights_are_off_by_half_a_step_at_most():
    weight = torch.randn(20, 50)
    weight[3] = 0
    steps, scale = quantized(weight)
    assert ((steps * scale[:, None] - weight).abs() <= 0.5001 * scale[:, None]).all()
    assert not steps[3].any() and (steps.abs().amax(1)[scale > 0] == 127).all()


@pytest.mark.parametrize("kind", KINDS)
def test_the_operator_is_what_it_says(kind):
    x, weight, scale, bias = made(kind, 2, 6, 20)
    leaves = [part.requires_grad_() for part in (x, weight, bias) if part.is_floating_point()]
    torch.library.opcheck(module._FORWARD, (x, weight, bias, scale))
    grads = torch.autograd.grad(linear_few(x, weight, bias, scale).float().square().sum(), leaves)
    full = weight.float() if scale is None else weight * scale[:, None]
    right = torch.autograd.grad((x.float() @ full.T + bias).square().sum(), leaves)
    assert all(
        torch.allclose(a.float(), b.float(), rtol=2e-2, atol=0.3 if kind == "bfloat16" else 1e-3)
        for a, b in zip(grads, right, strict=True)
    )


def test_what_it_writes_into_is_what_it_returns():
    x, weight, _, bias = made("float32", 2, 6, 20)
    out = torch.empty(2, 6)
    assert module._OUT(x, weight, bias, out=out) is out and torch.equal(out, linear_few(x, weight, bias))


def test_what_does_not_fit_is_said():
    x, weight, scale, bias = made("int8", 2, 6, 20)
    for given, words in (
        ((x, weight), "int8 weights, and no others"),
        ((x, weight.float(), bias, scale), "int8 weights, and no others"),
        ((x[:, :3], weight, bias, scale), r"x must be \(..., k\)"),
        ((x.double(), weight, bias, scale), "float32 or bfloat16"),
        ((x, weight, bias[:3], scale), r"must be \(n,\)"),
    ):
        with pytest.raises(ValueError, match=words):
            module._FORWARD(*given)
    assert fits(x, weight.float(), bias) and not fits(x.double(), weight.double())
    assert not fits(x.repeat(5, 1), weight.float()) and not fits(x.bfloat16(), weight.float())


def test_no_rows_have_gradients():
    x, weight = torch.ones(0, 8, requires_grad=True), torch.ones(3, 8, requires_grad=True)
    torch.ops.lavagna.linear_few(x, weight).sum().backward()
    assert x.grad is not None and weight.grad is not None and x.grad.shape == x.shape and not weight.grad.any()


@pytest.mark.parametrize("out", [torch.empty(4, 3), torch.empty(1, 2), torch.empty(1, 3, dtype=torch.float64)])
def test_where_nothing_can_be_written_is_refused(out):
    with pytest.raises(ValueError, match=r"out must be torch.float32 \(1, 3\)"):
        torch.ops.lavagna.linear_few.out(torch.ones(1, 8), torch.ones(3, 8), out=out)
