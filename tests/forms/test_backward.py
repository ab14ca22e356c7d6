"""What a call costs: its backward grows as the text does, and a narrow memory costs little more than its numbers."""

import time

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import lavagna as lv


class Written(TorchDispatchMode):
    """Counts the numbers that operations write: what they return and do not share with what they were given."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if not func.is_view:
            for x in out if isinstance(out, tuple | list) else [out]:
                self.numbers += x.numel() if isinstance(x, torch.Tensor) else 0
        return out


def loss(t, form, device, *, heads, keys, chunk=None):
    """A call in the shape of Mamba: a head a channel, a value each, one B and C for all, and a decay times a step."""
    q, k = torch.randn(2, 1, t, 1, keys, device=device).requires_grad_()
    v, step = torch.randn(2, 1, t, heads, 1, device=device).requires_grad_()
    log_decay = (-torch.rand(1, 1, heads, keys, device=device)).requires_grad_()
    output, state = lv.recur(
        lv.diagonal(log_decay, step=step.square()), q, k, v, form=form, chunk=chunk, backend="torch"
    )
    return output.square().sum() + state.sum()


@pytest.mark.parametrize("form", ["recurrent", "scan", "chunkwise", "auto"])
def test_twice_the_text_is_at_most_twice_the_numbers_in_the_backward(form, device):
    numbers = []
    for t in (256, 512):
        last = loss(t, form, device, heads=2, keys=16)
        with Written() as written:
            last.backward()
        numbers.append(written.numbers)
    assert numbers[1] <= 2.05 * numbers[0]


@pytest.mark.parametrize(
    ("heads", "keys"), [(1024, 16), (32, 16), (256, 32), (32, 1)], ids=["mamba", "mamba narrow", "s4d", "s5"]
)
def test_left_to_itself_a_narrow_memory_costs_half_of_its_chunks(heads, keys, device):
    numbers = {}
    for form in ("auto", "chunkwise"):
        with Written() as written:
            loss(64, form, device, heads=heads, keys=keys).backward()
        numbers[form] = written.numbers
    assert numbers["auto"] < numbers["chunkwise"] / 2


@pytest.mark.slow
@pytest.mark.parametrize(("form", "keys"), [("recurrent", 16), ("auto", 16), ("scan", 2), ("chunkwise", 2)])
def test_a_scan_of_1024_channels_never_grows_quadratically_in_its_backward(form, keys, device):
    """Four times the text, t 1024 to 4096: 4 times the time if linear, 16 if quadratic; the best of three runs each."""
    chunk = 16 if form == "chunkwise" else None
    best = {1024: float("inf"), 4096: float("inf")}
    for _ in range(3):
        for t in best:
            last = loss(t, form, device, heads=1024, keys=keys, chunk=chunk)
            start = time.perf_counter()
            last.backward()
            best[t] = min(best[t], time.perf_counter() - start)
    assert best[4096] < 8 * best[1024]
