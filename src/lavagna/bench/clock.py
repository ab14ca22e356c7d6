"""Times that can be compared: all jobs in turn, round after round, and the median of each."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

Job = Callable[[], object]


def medians(jobs: Mapping[str, Job], *, rounds: int) -> dict[str, float]:
    """Median seconds of each job, the jobs taken in turn so that a slow moment of the machine meets all of them.

    Each runs once before, unmeasured.
    """
    for job in jobs.values():
        job()
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


@contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread, as many as before afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
