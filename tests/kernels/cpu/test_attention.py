"""A step of attention on a CPU is a softmax over what each row has cached, whatever room the cache has."""

import math

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv
from lavagna.generation.ring import Ring
from lavagna.kernels.cpu import attention
from lavagna.kernels.cpu.attention import attended, attention_step
from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.prepared import prepared

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

WINDOWS = pytest.mark.parametrize("window", [None, 1, 5, 300])


def drawn(tokens, *, heads=2, readers=3, size=16, window=None, dtype=torch.float64):
    """q, k, v, keys, values, tokens_seen of rows that have seen so many tokens."""
    seen = torch.tensor(tokens)
    kept = seen if window is None else seen.clamp(max=window - 1)
    q = torch.randn(len(seen), 1, heads * readers, size).to(dtype)
    k, v = torch.randn(2, len(seen), 1, heads, size).to(dtype)
    caches = torch.randn(2, len(seen), int(kept.max()), heads, size).to(dtype)
    real = torch.arange(caches.shape[2]) < kept[:, None]
    keys, values = caches * real[:, :, None, None]
    return q, k, v, keys, values, seen


def written_out(q, k, v, keys, values, seen, window):
    """Every read as a weighted mean of the values within the window, in float64."""
    q, k, v, keys, values = (x.double() for x in (q, k, v, keys, values))
    reads = torch.zeros_like(q)
    for row, count in enumerate(seen.tolist()):
        kept = count if window is None else min(count, window - 1)
        for head in range(q.shape[2]):
            own = head // (q.shape[2] // k.shape[2])
            past, told = (torch.cat([x[row, :kept, own], new[row, :, own]]) for x, new in ((keys, k), (values, v)))
            weights = (past @ q[row, 0, head] / math.sqrt(q.shape[3])).softmax(0)
            reads[row, 0, head] = weights @ told
    return reads


@WINDOWS
@pytest.mark.parametrize("size", [1, 2, 16, 33, 64, 96])
@pytest.mark.parametrize(("heads", "readers"), [(1, 1), (3, 1), (1, 4), (2, 7)])
def test_it_is_a_softmax_over_the_cache(heads, readers, size, window):
    given = drawn([0, 3, 613, 256], heads=heads, readers=readers, size=size, window=window)
    found = attention_step(*given, window=window)
    assert torch.allclose(found[0], written_out(*given, window), rtol=0, atol=1e-12)
    for ours, right in zip(found, attended(*given, window), strict=True):
        assert ours.shape == right.shape and torch.allclose(ours, right, rtol=0, atol=1e-12)


@WINDOWS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_as_exact_as_torch(dtype, window):
    given = q, k, v, keys, values, seen = drawn([700] * 2, size=64, window=window, dtype=dtype)
    right = written_out(*given, window)
    past, told = (torch.cat(pair, 1).transpose(1, 2) for pair in ((keys, k), (values, v)))
    theirs = F.scaled_dot_product_attention(q.transpose(1, 2), past, told, enable_gqa=True).transpose(1, 2)
    ours = attention_step(*given, window=window)[0]
    assert ours.dtype == dtype
    errors = [(x.double() - right).abs().max() for x in (ours, theirs)]
    assert errors[0] <= 2 * errors[1]


@pytest.mark.parametrize("window", [None, 5, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_neither_threads_nor_other_rows_nor_the_room_change_a_bit(dtype, window):
    given = drawn([1500, 900], heads=4, size=64, window=window, dtype=dtype)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(attention_step(*given, window=window)[0])
            first = attention_step(*(x[:1] for x in given), window=window)[0]
            found.append(torch.cat([first, found[0][1:]]))
            found += [captured(given, window, room)[0] for room in (1501, 1600)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, found[0]) for one in found[1:])


def captured(given, window, room, steps=1):
    """The last reads, and keys and values in order, of steps on a cache with room."""
    q, k, v, keys, values, seen = given
    ring, seen = Ring(window, room if window is None else min(window, room)), seen.clone()
    keys, values = (ring.laid_out(x, seen) for x in (keys, values))
    made = torch.empty_like(q), keys, values
    call = prepared(attention.STEP, (q, k, v, keys, values, seen, window), {}, made)
    for _ in range(steps):
        call()
        seen += 1
    return made[0], *(ring.in_order(x, seen) for x in made[1:])


@pytest.mark.parametrize("window", [None, 2, 5, 13])
def test_steps_on_a_cache_with_room_are_steps_on_one_without(window):
    given = drawn([3, 9, 0], window=window)
    for steps in (1, 2, 7):
        found, state = captured(given, window, 16, steps), given[3:]
        for _ in range(steps):
            reads, *state = *attention_step(*given[:3], *state, window=window), state[2] + 1
        for ours, right in zip(found, (reads, *state), strict=False):
            assert ours.shape == right.shape and torch.allclose(ours, right, rtol=0, atol=1e-14)


def test_nothing_of_the_callers_is_changed_and_nothing_shared():
    given = drawn([4, 2])
    before = [x.clone() for x in given]
    reads, keys, values = attention_step(*given, window=None)
    for x in (reads, keys, values):
        x.fill_(torch.nan)
    assert all(map(torch.equal, given, before))


def test_a_cache_with_more_room_than_its_longest_row_is_cut_to_it():
    q, k, v, keys, values, seen = drawn([4, 2])
    longer = [F.pad(x, (0, 0, 0, 0, 0, 3)) for x in (keys, values)]
    found = [attention_step(q, k, v, *caches, seen, window=None) for caches in (longer, (keys, values))]
    assert all(map(torch.equal, *found))


def test_what_is_no_number_shows_and_what_weighs_nothing_does_not():
    q, k, v, keys, values, seen = drawn([600], heads=1, readers=1, dtype=torch.float32)
    q.fill_(1)
    keys[0, :256] = -torch.inf
    assert attention_step(q, k, v, keys, values, seen, window=None)[0].isfinite().all()
    for place in (0, 300, 599):
        spoiled = keys.index_fill(1, torch.tensor([place]), torch.nan)
        assert attention_step(q, k, v, spoiled, values, seen, window=None)[0].isnan().all()


@pytest.mark.parametrize("window", [None, 4])
def test_its_gradients_are_those_of_the_sum(window):
    *given, seen = drawn([3, 1], size=3, window=window)
    leaves = [x.clone().requires_grad_() for x in given]
    ours, right = attention_step(*leaves, seen, window=window), attended(*leaves, seen, window)
    losses = [sum(x.square().sum() for x in found) for found in (ours, right)]
    for mine, theirs in zip(*(torch.autograd.grad(loss, leaves) for loss in losses), strict=True):
        assert not mine.requires_grad and torch.allclose(mine, theirs, rtol=0, atol=1e-12)
    torch.autograd.gradgradcheck(lambda *x: attention_step(*x, seen, window=window), leaves)


def test_the_operator_is_what_it_says():
    *given, seen = drawn([3, 1], size=4)
    checks = ["test_schema", "test_autograd_registration", "test_faketensor"]
    torch.library.opcheck(attention.STEP, (*(x.clone().requires_grad_() for x in given), seen, 4), test_utils=checks)


@pytest.mark.parametrize(
    "change",
    [
        {"q": torch.zeros(2, 1, 5, 16).double()},
        {"k": torch.zeros(2, 2, 2, 16).double()},
        {"v": torch.zeros(2, 1, 2, 16)},
        {"values": torch.zeros(2, 3, 2, 16).double()},
        {"tokens_seen": torch.zeros(3).long()},
        {"tokens_seen": torch.tensor([5, 1])},
        {"tokens_seen": torch.tensor([4, -1])},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_does_not_fit_is_refused(change):
    names = ("q", "k", "v", "keys", "values", "tokens_seen")
    given = dict(zip(names, drawn([4, 2]), strict=True)) | change
    with pytest.raises(ValueError, match="attention_step: .* came"):
        attention.STEP(*given.values(), None)


def test_a_layer_takes_it_for_a_step_without_holes():
    layer, taken = lv.layers.build("softmax_attention", 32), []
    mask = torch.tensor([[1], [0]]).bool()
    with torch.no_grad():
        state = layer(torch.randn(2, 3, 32)).state
        for options in ({}, {"mask": mask}, {"form": "parallel"}, {"backend": "torch"}):
            with torch.profiler.profile() as profile:
                layer(torch.randn(2, 1, 32), state, **options)
            taken.append(any(event.key == "lavagna::attention_step" for event in profile.key_averages()))
    assert taken == [True, False, False, False]
