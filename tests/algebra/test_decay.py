"""Gaps of decay inside a chunk, held to sums over exactly the steps between."""

import math

import pytest
import torch

from lavagna.algebra.decay import decay_of
from transitions import difference


def gap(log_decay: torch.Tensor, s: int, t: int) -> torch.Tensor:
    """exp of the sum over s < r <= t, by definition."""
    return torch.stack([log_decay[r] for r in range(s + 1, t + 1)] or [torch.zeros_like(log_decay[0])]).sum(0).exp()


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 13, 64])
@pytest.mark.parametrize("last", [0, 1, 5])
def test_pairs_start_and_end_are_sums_over_the_steps_between(steps, last, device):
    log_decay = -torch.rand(steps, last, dtype=torch.float64, device=device) if last else None
    x, y = torch.randn(2, steps, 5, dtype=torch.float64, device=device)
    each = log_decay if last else torch.zeros(steps, 1, dtype=torch.float64, device=device)
    decay = decay_of(log_decay)
    for strict in (False, True):
        right = torch.zeros(steps, steps, dtype=torch.float64, device=device)
        for t in range(steps):
            for s in range(t if strict else t + 1):
                right[t, s] = (x[t] * gap(each, s, t - strict) * y[s]).sum()
        assert difference(decay.pairs(x, y, strict=strict), right) < 1e-14
        start = torch.stack([x[t] * gap(each, -1, t - strict) for t in range(steps)])
        assert difference(decay.from_start(x, strict=strict), start) < 1e-14
    assert difference(decay.to_end(y), torch.stack([y[s] * gap(each, s, steps - 1) for s in range(steps)])) < 1e-14
    total = decay.total()
    assert total is None if not last else difference(total[0].exp(), gap(each, -1, steps - 1)) < 1e-14


@pytest.mark.parametrize("last", [1, 2])
def test_a_small_gap_behind_a_huge_decay_is_not_lost(last, device):
    # A difference of running sums would leave exp(-0.01) with an error of 1e-3 in float32, and NaN behind -inf.
    for wall in (-30.0, -1e4, -math.inf):
        log_decay = torch.full((32, last), -0.01, device=device)
        log_decay[7] = wall
        one = torch.ones(32, last, device=device)
        pairs = decay_of(log_decay).pairs(one, one, strict=False) / last
        assert pairs[20, 19].item() == pytest.approx(math.exp(-0.01), rel=1e-6)
        assert pairs[31, 7].item() == pytest.approx(math.exp(-0.24), rel=1e-6)
        assert pairs[7, 6].item() == pytest.approx(math.exp(wall), rel=1e-5)


@pytest.mark.parametrize("last", [1, 3])
def test_no_tensor_over_pairs_and_channels_is_made(last, device):
    # (c, c, k) over a chunk would be 64 * 64 * 128 numbers; the largest that may live is one of (c, c) or (c, k).
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            sizes.extend(x.numel() for x in torch.utils._pytree.tree_leaves(out) if isinstance(x, torch.Tensor))
            return out

    c, k = 64, 128
    x, y = torch.randn(2, c, k, device=device)
    log_decay = -torch.rand(c, k if last > 1 else 1, device=device)
    with Watch():
        decay = decay_of(log_decay)
        decay.pairs(x, y, strict=False)
    assert max(sizes) <= max(c * c, c * k)
