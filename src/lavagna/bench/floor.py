"""What bounds a job from below: the arithmetic and the bytes it can't do without, and the machine's speed at both."""

from typing import NamedTuple

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


class Work(NamedTuple):
    """A job that the machine does as well as anything, and how much of it: operations or bytes."""

    job: Job
    amount: int


def product(dtype: torch.dtype = torch.float32, side: int = SIDE) -> Work:
    """A large product of matrices: 2 side^3 floating-point operations."""
    left, right = torch.randn(side, side).to(dtype), torch.randn(side, side).to(dtype)
    out = torch.empty(side, side, dtype=dtype)
    return Work(lambda: torch.mm(left, right, out=out), 2 * side**3)


def reading(nbytes: int) -> Work:
    """The sum of so many bytes of float32, which reads each once."""
    numbers = torch.zeros(nbytes // 4)
    return Work(numbers.sum, nbytes)


def copying(nbytes: int) -> Work:
    """A copy of so many bytes to where others were: each is read once and written once."""
    numbers, out = torch.zeros(nbytes // 4), torch.zeros(nbytes // 4)
    return Work(lambda: out.copy_(numbers), 2 * nbytes)


def adding(nbytes: int) -> Work:
    """The sum of two blocks of so many bytes, written to a third: three passes."""
    one, two, out = (torch.zeros(nbytes // 4) for _ in range(3))
    return Work(lambda: torch.add(one, two, out=out), 3 * nbytes)
