"""Times that can be compared: all jobs in turn, round after round."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch

Job = Callable[[], object]


class Timed(NamedTuple):
    """Seconds of a job, and how many runs they were found in."""

    seconds: float
    runs: int


def medians(jobs: Mapping[str, Job], *, rounds: int) -> dict[str, float]:
    """Median seconds of each job, the jobs taken in turn so that a slow moment of the machine meets all of them.

    Each runs once before, unmeasured.
    """
    for job in jobs.values():
        job()
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            taken[name].append(seconds_of(job))
    return {name: statistics.median(times) for name, times in taken.items()}


def least(jobs: Mapping[str, Job], *, rounds: int, patience: float = float("inf")) -> dict[str, Timed]:
    """The least seconds of each job, the jobs taken in turn: those of the moment in which nobody else was served.

    A run's seconds are those of the clock, or the processor's where these are fewer: then it had to wait for others.
    Each runs once before. That run is measured only where it takes more than `patience` seconds; the job is then not
    run again.
    """
    taken: dict[str, list[float]] = {}
    slow = set()
    for name, job in jobs.items():
        taken[name] = [busy_seconds_of(job)]
        if taken[name][0] > patience:
            slow.add(name)
        elif rounds:
            taken[name].clear()
    for _ in range(rounds):
        for name, job in jobs.items():
            if name not in slow:
                taken[name].append(busy_seconds_of(job))
    return {name: Timed(min(times), len(times)) for name, times in taken.items()}


def seconds_of(job: Job) -> float:
    """Seconds of one run."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def busy_seconds_of(job: Job) -> float:
    """Seconds of one run, without those in which not one of its threads was served."""
    busy = time.process_time()
    passed = seconds_of(job)
    return min(passed, time.process_time() - busy)


def on(count: int, job: Job) -> Job:
    """The job on so many threads of torch."""

    def run() -> object:
        with threads(count):
            return job()

    return run


@contextmanager
def threads(count: int) -> Iterator[None]:
    """torch on so many threads, as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread():
    """torch on one thread, as many as before afterwards."""
    return threads(1)
