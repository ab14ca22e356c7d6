"""The kernel of the recurrence beside torch's chunks, the machine's product, and itself on more threads."""

from collections.abc import Iterator, Sequence

import torch

from lavagna.bench.clock import Timed, least, on, threads
from lavagna.bench.cpu.machine import counts
from lavagna.bench.cpu.row import Against, Row, Subject, Verdict, absent, measured, wrong
from lavagna.bench.floor import product
from lavagna.bench.transitions import CORRECTING, HEADS, NAMES, Inputs, Way, draw, gradients, job, output
from lavagna.checks.row import TOLERANCES, distance
from lavagna.kernels import describe, serves

# What a core computes in steps where its product is faster still, and the share of it where it is not: GFLOP/s.
ENOUGH, SHARE = 60.0, 0.65
# A forward and a backward pass: times the forward pass's goal, and how many times its operations are counted.
WITH_BACKWARD, PASSES = 5.0, 3
# Two threads over one: a call has to end before the slower has, and the memory's bandwidth is shared.
GAIN = 1.7
DEFINITION, CHUNKS, KERNEL = Way("recurrent", "torch"), Way("chunkwise", "torch"), Way("recurrent", "cpu")
DIRECTIONS = ("forward", "with backward")


def recurrence_rows(
    names: Sequence[str] = NAMES, *, sizes: Sequence[int] = (64, 128), steps: int = 2048, rounds: int = 5
) -> Iterator[Row]:
    """Each transition, b 1, h 4, float32: the kernel on one thread and on all, torch's chunks on one.

    A step of the recurrence is counted as 5 k v operations a head, 7 k v with a rank-one part, a forward and backward
    pass as three times that. The goal is those at 60 GFLOP/s a core, or 0.65 of its product of matrices if that is
    less; a forward and backward pass may take five times the forward pass's goal. Everything timed is first held to the
    definition in float64, gradients too (`judged`).
    """
    if not serves("cpu"):
        yield absent(Subject("recurrence", "every transition", "forward", "kernel", 1), describe("cpu"))
        return
    with threads(torch.get_num_threads()):
        for size in sizes:
            for name in names:
                yield from _rows(name, size, steps, rounds)


def operations(name: str, size: int, steps: int) -> int:
    """Floating-point operations of a forward pass as they are counted here.

    >>> operations("scalar", 64, 1) == 5 * 64 * 64 * HEADS
    True
    """
    return (7 if name in CORRECTING else 5) * size * size * HEADS * steps


def _rows(name: str, size: int, steps: int, rounds: int) -> Iterator[Row]:
    verdicts = judged(name, size, steps)
    every = torch.get_num_threads()
    ways = {("kernel", count): KERNEL for count in counts(every)} | {("chunks", 1): CHUNKS}
    work = product()
    for direction in DIRECTIONS:
        jobs = {("product", 1): on(1, work.job)}
        for (by, count), way in ways.items():
            subject = _subject(name, size, direction, by, count)
            if verdicts[by, direction].right:
                backward = direction != DIRECTIONS[0]
                jobs[by, count] = on(count, job(name, size, steps, way, backward=backward))
            else:
                yield wrong(subject, verdicts[by, direction], "the definition in float64")
        found = least({f"{by} {count}": each for (by, count), each in jobs.items()}, rounds=rounds)
        times = dict(zip(jobs, found.values(), strict=True))
        speed = work.amount / times.pop(("product", 1)).seconds
        floor = operations(name, size, steps) * (1 if direction == DIRECTIONS[0] else PASSES)
        for (by, count), time in times.items():
            subject = _subject(name, size, direction, by, count)
            against = _against((by, count), direction, times, floor, speed)
            verdict = verdicts[by, direction]
            yield measured(subject, time, work=floor / 1e9, unit="GFLOP/s", against=against, verdict=verdict)


def _subject(name: str, size: int, direction: str, by: str, count: int) -> Subject:
    return Subject("recurrence", f"{name} k=v={size}", direction, by, count)


def _against(
    one: tuple[str, int], direction: str, times: dict[tuple[str, int], Timed], floor: int, speed: float
) -> Against | None:
    """What a time is held against: the floor, or what is to be beaten."""
    by, count = one
    if by == "kernel" and count == 1:
        bound = 1.0 if direction == DIRECTIONS[0] else WITH_BACKWARD / PASSES
        return Against("goal", floor / min(1e9 * ENOUGH, SHARE * speed), bound)
    beaten = times.get(("kernel", 1))
    if beaten is None:
        return None
    return Against("kernel, 1 thread", beaten.seconds, 1 / GAIN if by == "kernel" and count == 2 else None)


def judged(name: str, size: int, steps: int) -> dict[tuple[str, str], Verdict]:
    """The kernel's answers and those of torch's chunks in float32: reads against the loop over steps in float64.

    Gradients are held to those of torch's chunks in float64, whose reads are first held to the loop: its own backward
    pass keeps every state.
    """
    x = draw(size, steps)
    gradient = torch.randn(1, steps, HEADS, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wanted = output(name, _double(x), DEFINITION)
    chunks, wanted_back = gradients(name, _leaves(_double(x)), CHUNKS, gradient)
    trusted = distance([chunks], [wanted]) <= TOLERANCES["output", torch.float64]
    verdicts = {}
    for by, way in (("kernel", KERNEL), ("chunks", CHUNKS)):
        with torch.no_grad():
            came = output(name, x, way)
        _, back = gradients(name, _leaves(x), way, gradient)
        off = distance(back, wanted_back) if trusted else float("nan")
        verdicts[by, DIRECTIONS[0]] = Verdict(distance([came], [wanted]), TOLERANCES["output", torch.float32])
        verdicts[by, DIRECTIONS[1]] = Verdict(off, TOLERANCES["gradient", torch.float32])
    return verdicts


def _double(x: Inputs) -> Inputs:
    return {key: tensor.double() for key, tensor in x.items()}


def _leaves(x: Inputs) -> Inputs:
    return {key: tensor.detach().requires_grad_() for key, tensor in x.items()}
