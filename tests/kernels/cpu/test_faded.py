"""Memories that have faded cost the CPU kernels no more than those that have not."""

import time

import pytest
import torch

import lavagna as lv
from lavagna.kernels.cpu import narrow, operators, selective
from lavagna.kernels.cpu.library import library

pytestmark = pytest.mark.skipif(library().functions is None, reason=library().level)
# Numbers too small to be normal would take ten times as long and more.
LONGER = 4


def seconds(run, *given):
    """The least processor time of nine runs."""
    times = []
    for _ in range(9):
        start = time.process_time()
        run(*given)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("back", [False, True], ids=["forward", "backward"])
def test_strong_decays_take_no_longer_than_weak_ones(back):
    q, k, v = (x.requires_grad_(back) for x in torch.randn(3, 1, 128, 1, 64))

    def run(decay):
        output, state = lv.recur(lv.scalar(torch.full((1, 1, 1, 1), decay)), q, k, v, backend="cpu")
        if back:
            torch.autograd.grad(output.sum() + state.sum(), (q, k, v))

    weak, *strong = (seconds(run, decay) for decay in (-0.1, -12.0, -100.0))
    assert max(strong) < LONGER * weak


def of_one_head(x):
    q, k, state = *torch.randn(2, *x.shape[:2], 1, 64), torch.zeros(1, 1, 64, 64)
    decay = torch.full((1, 1, 1, 1), -0.3)
    operators.RUN(q, k, x[:, :, None], decay, None, None, None, state, None, None, False, False, False)


def of_narrow_memories(x):
    q, decay, state = torch.ones(1, len(x[0]), 1, 1), torch.full((1, 1, 64, 1), -0.3), torch.zeros(1, 64, 1, 1)
    narrow.RUN(q, q, x[..., None], decay, None, None, state, None, None, False, False)


def of_mamba(x):
    B, A, state = torch.ones(1, len(x[0]), 16), torch.full((64, 16), -0.3), torch.zeros(1, 64, 1, 16)
    selective._RUN(x, torch.ones_like(x), A, B, B, None, state, None, None, False)


@pytest.mark.parametrize("run", [of_one_head, of_narrow_memories, of_mamba])
def test_silence_takes_no_longer_than_sound(run):
    sound = torch.randn(1, 2000, 64)
    silence = sound.clone()
    silence[:, 20:] = 0
    with torch.no_grad():
        assert seconds(run, silence) < LONGER * seconds(run, sound)
