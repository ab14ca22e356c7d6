"""Speed of the chunkwise form and of the loop over steps, for every transition, on one thread."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lavagna.bench.clock import medians, one_thread
from lavagna.bench.floor import floor_flops, product
from lavagna.bench.transitions import CHUNK, CORRECTING, HEADS, Way, job
from lavagna.kernels import serves

# How many times the floor each may take; the loop over steps is measured for comparison, not bounded.
BOUNDS = {
    "identity": (4, 16),
    "scalar": (4, 16),
    "diagonal": (8, 32),
    "householder": (4, 16),
    "gated_householder": (4, 16),
    "gated_householder diagonal": (8, 32),
    "dplr": (8, 32),
}
PASSES = ("forward", "forward_backward")


class Row(NamedTuple):
    """Median time of one transition in one form, and as a ratio to the forward pass's floor; `bound` None: not bounded.

    `holds` says whether the ratio is within its bound, None where there is none.
    """

    transition: str
    form: str
    backend: str
    key_size: int
    direction: str
    time_ms: float
    floor_ms: float
    ratio: float
    bound: float | None
    holds: bool | None


def form_rows(
    names: Sequence[str] = tuple(BOUNDS),
    *,
    sizes: Sequence[int] = (64, 128),
    steps: int = 2048,
    rounds: int = 7,
    loop_rounds: int = 1,
) -> Iterator[Row]:
    """Measure each transition forward, and forward and backward, b 1, h 4, float32, chunks of 64.

    The floor comes from a matrix product measured in the same rounds. The loop over steps is measured forward, for
    comparison; `loop_rounds` 0 leaves it out. Where there is a CPU kernel it is measured as the chunkwise form is.
    """
    with one_thread():
        for size in sizes:
            for name in names:
                yield from _measured(name, size, steps, rounds, loop_rounds)


def _measured(name: str, size: int, steps: int, rounds: int, loop_rounds: int) -> Iterator[Row]:
    matmul, flops = product()
    floor = floor_flops(steps, HEADS, size, size, CHUNK, corrects=name in CORRECTING)
    # The loop is measured forward only: backward it takes minutes.
    wanted = [("chunkwise", "torch", PASSES, rounds), ("recurrent", "torch", PASSES[:1], loop_rounds)]
    if serves("cpu"):
        wanted.append(("recurrent", "cpu", PASSES, rounds))
    for form, backend, directions, times in wanted:
        if not times:
            continue
        jobs = {"matmul": matmul}
        for direction in directions:
            jobs[direction] = job(name, size, steps, Way(form, backend), backward=direction != "forward")
        found = medians(jobs, rounds=times)
        floor_seconds = found["matmul"] * floor / flops
        for direction, bound in zip(directions, BOUNDS[name], strict=False):
            ratio = found[direction] / floor_seconds
            bound = bound if form == "chunkwise" else None
            milliseconds = 1e3 * found[direction], 1e3 * floor_seconds
            holds = None if bound is None else ratio <= bound
            yield Row(name, form, backend, size, direction, *milliseconds, ratio, bound, holds)
