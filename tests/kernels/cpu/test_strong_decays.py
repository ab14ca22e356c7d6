"""Strong decays cost the CPU kernel of the recurrence no more than weak ones."""

import time

import pytest
import torch

import lavagna as lv
from lavagna.kernels.cpu.library import library

pytestmark = pytest.mark.skipif(library().functions is None, reason=library().level)


@pytest.mark.parametrize("back", [False, True], ids=["forward", "backward"])
def test_strong_decays_take_no_longer_than_weak_ones(back):
    q, k, v = (x.requires_grad_(back) for x in torch.randn(3, 1, 128, 1, 64))

    def seconds(decay):
        start = time.process_time()
        output, state = lv.recur(lv.scalar(torch.full((1, 1, 1, 1), decay)), q, k, v, backend="cpu")
        if back:
            torch.autograd.grad(output.sum() + state.sum(), (q, k, v))
        return time.process_time() - start

    # Numbers too small to be normal, of which both make many, would take them ten times as long.
    weak, *strong = (min(seconds(decay) for _ in range(9)) for decay in (-0.1, -12.0, -100.0))
    assert max(strong) < 4 * weak
