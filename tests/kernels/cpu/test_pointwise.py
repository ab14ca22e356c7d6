"""torch's operators on small tensors: the kernel's numbers are torch's, however the tensors lie in memory."""

import pytest
import torch

from lavagna.kernels.cpu import pointwise
from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.prepared import Call, joined, prepared

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

aten = torch.ops.aten
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
# What float32, float64 and bfloat16 are held to: a few roundings.
CLOSE = {torch.float32: 2e-6, torch.float64: 4e-15, torch.bfloat16: 1e-2}

UNARY = (
    "neg abs relu reciprocal sqrt rsqrt exp expm1 sigmoid silu tanh sin cos log log1p gelu softplus log_sigmoid_forward"
)
BINARY = "add sub mul div maximum minimum gt ge lt le eq ne"
COMPARED = ["gt", "ge", "lt", "le", "eq", "ne"]
SHAPES = [(1, 1, 300), (1, 3, 5), (2, 1, 2, 3, 17), (4,)]


def made_by(operator, *given, **options):
    results = operator(*given, **options)
    return results if isinstance(results, tuple) else (results,)


def same(operator, *given, results=None, slack=1, **options):
    """The prepared call of an operator gives what torch does, into memory that held something else."""
    right = made_by(operator, *given, **options)
    made = tuple(torch.full_like(x, 7) for x in right)
    call = prepared(operator, given, options, made)
    assert call is not None
    call()
    for mine, x in list(zip(made, right, strict=True))[:results]:
        close = CLOSE.get(x.dtype, 0)
        assert torch.allclose(mine, x, rtol=close, atol=slack * close, equal_nan=True), (operator, mine, x)


def drawn(shape, dtype, seed=0):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3
    # What is special to somebody.
    x.view(-1)[:4] = torch.tensor([0.0, 30.0, -30.0, 1e-5][: min(4, x.numel())])
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UNARY.split())
def test_functions_of_one_number(name, dtype):
    for shape in SHAPES:
        same(getattr(aten, name).default, drawn(shape, dtype), results=1)
    turned = drawn((6, 40), dtype).T
    same(getattr(aten, name).default, turned[::2, 1:], results=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", BINARY.split())
def test_functions_of_two_numbers(name, dtype):
    overloads = getattr(aten, name)
    operator = overloads.default if name in ("maximum", "minimum") else overloads.Tensor
    x = drawn((2, 3, 20), dtype)
    for y in (drawn((2, 3, 20), dtype, 1), drawn((20,), dtype, 1), drawn((3, 1), dtype, 1), x, x.mT.contiguous().mT):
        same(operator, x, y)
    same(operator, x[:, :1], drawn((3, 20), dtype, 1))
    if operator is not overloads.default:
        same(overloads.Scalar if name in COMPARED else operator, x, 1.5)
    if dtype == torch.bfloat16:
        same(operator, x, drawn((20,), torch.float32, 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_functions_with_options(dtype):
    x, y, w = (drawn((2, 3, 20), dtype, seed) for seed in range(3))
    same(aten.add.Tensor, x, y, alpha=-0.5)
    same(aten.rsub.Scalar, x, 1)
    same(aten.pow.Tensor_Scalar, x, 2)
    same(aten.pow.Tensor_Scalar, x.abs(), 0.5)
    same(aten.clamp.default, x, 0.0, torch.inf)
    same(aten.clamp.default, x, None, 1.0)
    same(aten.clamp_min.default, x, -0.5)
    same(aten.clamp_max.default, x, 0.5)
    same(aten.gelu.default, x, approximate="tanh")
    same(aten.softplus.default, x, 2.0, 3.0)
    same(aten.glu.default, x, -1)
    same(aten.glu.default, x[:, :2], 1)
    same(aten.lerp.Tensor, x, y, w.sigmoid())
    same(aten.addcmul.default, x, y, w[:, :1])
    same(aten.addcmul.default, x, y, w, value=-0.5)
    same(aten.where.self, x > 0, y, w)
    same(aten.where.self, x > 0, y, torch.tensor(0.25, dtype=dtype))
    same(aten.masked_fill.Scalar, x, y > 0, 4)
    same(aten.remainder.Scalar, x, 0.75)
    same(aten.bitwise_not.default, x > 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_copies(dtype):
    x = drawn((2, 3, 20), dtype)
    same(aten.clone.default, x.mT, memory_format=torch.contiguous_format)
    for other in (*DTYPES, torch.bool):
        same(aten._to_copy.default, x, dtype=other)
    same(aten._to_copy.default, torch.arange(5), dtype=dtype)
    same(aten.cat.default, (x, x[:, :1], x[:, 1:]), 1)
    same(aten.cat.default, (x.new_empty(0), x, x), -1)
    same(aten.stack.default, (x, x.flip(0)), -1)
    same(aten.stack.default, (x, x.flip(0)))
    rows = torch.tensor([[1, 0], [2, 2]])[:, :, None].expand(-1, -1, 20)
    same(aten.gather.default, x, 1, rows)
    same(aten.gather.default, x, -1, torch.randint(20, (2, 2, 300)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 64, 300, 1000])
def test_sums_over_an_axis(size, dtype):
    for shape, axis in (((1, 1, size), -1), ((2, 3, size), -1), ((2, size, 3), 1), ((2, size, 3), -2)):
        x = drawn(shape, dtype)
        for keep in (False, True):
            same(aten.sum.dim_IntList, x.abs(), [axis], keep)
            same(aten.mean.dim, x.abs(), [axis], keep)
            same(aten.linalg_vector_norm.default, x, 2, [axis], keep)
    scale, shift = drawn((size,), dtype, 1), drawn((size,), dtype, 2)
    if dtype == torch.float64:
        same(aten.native_layer_norm.default, drawn((2, 3, size), dtype) + 1, [size], scale, shift, 1e-5, slack=30)
        same(aten.native_layer_norm.default, drawn((2, 3, size), dtype), [size], None, None, 1e-5, slack=30)
    else:
        same(aten.native_layer_norm.default, drawn((1, 3, size), torch.float32), [size], None, None, 1e-5, slack=30)


def test_what_is_no_number_stays_so():
    x = torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0] * 5)
    for name in ("relu", "exp", "expm1", "sigmoid", "silu", "tanh", "softplus", "neg"):
        same(getattr(aten, name).default, x)
    for name in ("maximum", "minimum"):
        same(getattr(aten, name).default, x, x.roll(1))
        same(getattr(aten, name).default, x.roll(1), x)


def test_counters_are_exact():
    count = torch.tensor([2**52 - 3, 5, -7])
    same(aten.add.Tensor, count, torch.tensor([1, 2, 3]))
    same(aten.eq.Scalar, count, 5)


def test_what_the_kernel_does_not_know_is_left_to_torch():
    x = drawn((2, 3), torch.float32)
    out = (torch.empty_like(x),)
    assert prepared(aten.neg.default, (x.half(),), {}, (out[0].half(),)) is None
    assert prepared(aten.neg.default, (x.to(torch.complex64),), {}, (out[0].to(torch.complex64),)) is None
    assert prepared(aten.pow.Tensor_Scalar, (x, 3), {}, out) is None
    assert prepared(aten.clamp.default, (x, 0, 1), {}, out) is None
    large = torch.zeros(pointwise.LARGE + 1)
    assert prepared(aten.neg.default, (large,), {}, (torch.empty_like(large),)) is None


def test_joined_calls_are_made_in_order():
    x, y, z = torch.ones(9), torch.empty(9), torch.empty(9)
    first, second = prepared(aten.exp.default, (x,), {}, (y,)), prepared(aten.mul.Tensor, (y, y), {}, (z,))
    assert isinstance(first, Call) and isinstance(second, Call)
    call = joined([first, second])
    call()
    assert torch.allclose(z, (2 * x).exp())
    x.fill_(2)
    call()
    assert torch.allclose(z, (2 * x).exp())
