"""The least arithmetic that a chunkwise form can get by with, and what the machine's matrix product makes of it."""

import torch

from lavagna.bench.clock import Job

SIDE = 1024


def floor_flops(steps: int, heads: int, keys: int, values: int, chunk: int, *, corrects: bool) -> int:
    """Floating-point operations of a forward pass, every product counted whole.

        decays        2 t h (chunk (k + v) + 2 k v)            Q K^T, scores V; read and update the memory
        delta rules   2 t h (2 chunk (k + v) + 3 k v)          also K K^T, the solve, the memory's answers

    >>> [floor_flops(2048, 4, size, size, 64, corrects=True) / 1e9 for size in (64, 128)]
    [0.469762048, 1.34217728]
    """
    inside, across = (2, 3) if corrects else (1, 2)
    return 2 * steps * heads * (inside * chunk * (keys + values) + across * keys * values)


def product() -> tuple[Job, int]:
    """A large product of float32 matrices, and its floating-point operations: what the machine can do."""
    left, right = torch.randn(SIDE, SIDE), torch.randn(SIDE, SIDE)
    out = torch.empty(SIDE, SIDE)
    return lambda: torch.mm(left, right, out=out), 2 * SIDE**3
