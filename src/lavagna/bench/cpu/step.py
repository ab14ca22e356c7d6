"""One step of the gated delta rule, as generation takes it: what a call costs."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from lavagna.algebra import dense
from lavagna.algebra.transition import gated_householder
from lavagna.bench.clock import Job, Timed, least, one_thread
from lavagna.bench.cpu.row import Against, Row, Subject, Verdict, absent, measured, wrong
from lavagna.checks.row import TOLERANCES, distance
from lavagna.dispatch import recur
from lavagna.kernels import describe, find, serves
from lavagna.kernels.cpu import operators
from lavagna.kernels.cpu.prepared import prepared

# What a step may take, in seconds: the kernel itself, and called from Python.
INSIDE, ENOUGH = 6e-6, 15e-6
# Calls that one measurement is of.
CALLS = 200


def step_rows(*, heads: int = 12, size: int = 64, rounds: int = 7, calls: int = CALLS) -> Iterator[Row]:
    """Microseconds of a step, b 1, float32, on one thread: the kernel's operator, `recur`, and `recur` by torch.

    The operator's inputs and its result are tensors, as in all calls of Python; it is wanted in 15 us. It is called as
    the door calls it, past torch's dispatcher where nobody looks on, and through it; "call" is the kernel's own time.
    """
    name = f"gated_householder {heads} x {size} x {size}"
    if not serves("cpu"):
        yield absent(Subject("step", name, "forward", "operator", 1), describe("cpu"))
        return
    with one_thread(), torch.no_grad():
        q, k, v, state, log_decay, beta = _drawn(heads, size)
        a = gated_householder(log_decay, k, beta)
        kernel = find("cpu", "recurrent")
        assert kernel is not None
        given = (q, k, v, log_decay, None, beta, None, state, None, None, True, False, False)
        made = operators.FORWARD(*given)
        alone = prepared(operators.FORWARD, given, {}, made)
        assert alone is not None
        ways: dict[str, Callable[[], tuple[Tensor, ...]]] = {
            "call": lambda: alone() or made,
            "operator": partial(operators.RUN, *given),
            "operator through torch": partial(operators.FORWARD, *given),
            "kernel": partial(kernel.run, a, q, k, v, state, read="after"),
            "recur": partial(recur, a, q, k, v, state),
            "recur by torch": partial(recur, a, q, k, v, state, backend="torch"),
        }
        wanted = dense.recur(a, q, k, v, state)
        jobs: dict[str, Job] = {}
        verdicts = {}
        for by, call in ways.items():
            verdicts[by] = Verdict(distance(call()[:2], wanted), TOLERANCES["output", torch.float32])
            if verdicts[by].right:
                jobs[by] = partial(_often, call, calls)
            else:
                yield wrong(Subject("step", name, "forward", by, 1), verdicts[by], "the definition in float64")
        for by, (seconds, runs) in least(jobs, rounds=rounds).items():
            bound = {"call": INSIDE, "operator": ENOUGH}.get(by)
            against = Against(f"{1e6 * (bound or ENOUGH):.0f} us", bound or ENOUGH, 1.0 if bound else None)
            subject = Subject("step", name, "forward", by, 1)
            yield measured(subject, Timed(seconds / calls, runs * calls), against=against, verdict=verdicts[by])


def _often(call: Callable[[], object], calls: int) -> None:
    for _ in range(calls):
        call()


def _drawn(heads: int, size: int) -> list[Tensor]:
    """q, k, v, state, log decay and beta."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q, k, v = (normal(1, 1, heads, size) for _ in range(3))
    state, decay, beta = normal(1, heads, size, size), normal(1, 1, heads, 1), normal(1, 1, heads, 1)
    return [q, F.normalize(k, dim=-1), v, state, F.logsigmoid(decay + 3), beta.sigmoid()]
