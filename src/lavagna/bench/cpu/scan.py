"""Scans of diagonal systems: Mamba's, fused, beside one copy of its states; and one of decays that lie in memory."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lavagna.algebra.transition import diagonal
from lavagna.bench.clock import least, on, threads
from lavagna.bench.cpu.machine import counts, installed
from lavagna.bench.cpu.row import Against, Row, Subject, Verdict, measured, wrong
from lavagna.bench.floor import Work, adding, copying
from lavagna.checks.row import TOLERANCES, distance
from lavagna.dispatch import recur
from lavagna.modules.selective_scan import selective_scan
from lavagna.modules.steps import Steps

# Times one copy of all states, and times the three passes over decays, writes and states that a scan of them can't do
# without.
FORWARD, BACKWARD, PASSES = 1.1, 2.2, 1.6
OTHERS = ("mambapy",)
# Channels whose definition in float64 is differentiated at once, for the memory that it takes.
BLOCK = 256


class _Case(NamedTuple):
    """A scan of inputs, as one implementation computes it: reads of a list of tensors that have gradients."""

    by: str
    function: Callable[..., Tensor]
    inputs: list[Tensor]
    bounds: tuple[float | None, float | None]


def scan_rows(
    *, steps: int = 4096, channels: int = 1024, keys: int = 16, rounds: int = 5, others: tuple[str, ...] = OTHERS
) -> Iterator[Row]:
    """The selective scan and the scan of given decays, b 1, float32, forward and backward, on one thread and on all.

    The first is held against one copy of its states (steps, channels, keys), which it never writes; the second against
    an addition of three blocks of that size, its decays, writes and states.
    """
    with threads(torch.get_num_threads()):
        drawn = _drawn(steps, channels, keys)
        case = _Case("lavagna", _selective, drawn, (FORWARD, BACKWARD))
        name = f"selective {steps} x {channels} x {keys}"
        wanted = _defined(_selective_definition, drawn, channels)
        nbytes = 4 * steps * channels * keys
        yield from _rows(name, [case], wanted, ("one copy of the states", copying(nbytes)), rounds)
        del drawn, wanted, case
        given = _given(steps, channels * keys)
        cases = [_Case("lavagna", _through_recur, given, (PASSES, None))]
        if "mambapy" in others and installed("mambapy"):
            cases.append(_Case("mambapy", _pscan(channels, keys), given, (None, None)))
        wanted = _swept(*given)
        yield from _rows(f"given decays {steps} x {channels * keys}", cases, wanted, ("adding", adding(nbytes)), rounds)


def _rows(
    name: str, cases: list[_Case], wanted: tuple[Tensor, list[Tensor]], against: tuple[str, Work], rounds: int
) -> Iterator[Row]:
    every = torch.get_num_threads()
    jobs: dict[str, Any] = {f"floor {count}": on(count, against[1].job) for count in counts(every)}
    verdicts: dict[tuple[str, str], Verdict] = {}
    for case in cases:
        verdicts |= _judged(case, wanted)
        forward, backward = _directions(case)
        for direction, job in (("forward", forward), ("backward", backward)):
            if verdicts[case.by, direction].right:
                jobs |= {f"{case.by} {direction} {count}": on(count, job) for count in counts(every)}
    found = least(jobs, rounds=rounds)
    for case in cases:
        for direction, bound in zip(("forward", "backward"), case.bounds, strict=True):
            verdict = verdicts[case.by, direction]
            for count in counts(every):
                subject = Subject("scan", name, direction, case.by, count)
                if not verdict.right:
                    yield wrong(subject, verdict, "the loop over steps in float64")
                    continue
                floor = Against(against[0], found[f"floor {count}"].seconds, bound)
                time = found[f"{case.by} {direction} {count}"]
                yield measured(subject, time, against=floor, verdict=verdict)


def _judged(case: _Case, wanted: tuple[Tensor, list[Tensor]]) -> dict[tuple[str, str], Verdict]:
    leaves = [x.detach().requires_grad_() for x in case.inputs]
    y = case.function(*leaves)
    came = torch.autograd.grad(y, leaves, _gradient(y))
    return {
        (case.by, "forward"): Verdict(distance([y.detach()], [wanted[0]]), TOLERANCES["output", torch.float32]),
        (case.by, "backward"): Verdict(distance(came, wanted[1]), TOLERANCES["gradient", torch.float32]),
    }


def _directions(case: _Case) -> tuple[Callable[[], object], Callable[[], object]]:
    """A forward pass without gradients, and the backward pass of one that was kept, each as a job."""
    leaves = [x.detach().requires_grad_() for x in case.inputs]
    y = case.function(*leaves)
    gradient = _gradient(y)

    def forward() -> None:
        with torch.no_grad():
            case.function(*case.inputs)

    return forward, lambda: torch.autograd.grad(y, leaves, gradient, retain_graph=True)


def _gradient(y: Tensor) -> Tensor:
    return torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view_as(y).to(y.dtype)


def _drawn(steps: int, channels: int, keys: int) -> list[Tensor]:
    """x, dt, A, B, C and D of Mamba as it starts."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    dt = F.softplus(normal(1, steps, channels) - 4)
    A = -torch.arange(1, keys + 1).float().expand(channels, keys).contiguous()
    B, C = normal(1, steps, keys), normal(1, steps, keys)
    return [normal(1, steps, channels), dt, A, B, C, normal(channels)]


def _selective(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """As the layer `mamba` calls it."""
    memory = x.new_zeros(1, *A.shape).unsqueeze(2)
    return selective_scan(x, dt, A, B, C, D, memory, Steps("bench", x))[0]


def _selective_definition(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """`h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t`, `y_t = C_t . h_t + D x_t`, a step at a time."""
    state, reads = torch.zeros_like(A), []
    for now, step, write, read in zip(x[0], dt[0], B[0], C[0], strict=True):
        state = (step[:, None] * A).exp() * state + (step * now)[:, None] * write
        reads.append(state @ read + D * now)
    return torch.stack(reads)[None]


def _defined(function: Callable[..., Tensor], inputs: list[Tensor], channels: int) -> tuple[Tensor, list[Tensor]]:
    """Reads and gradients in float64, some channels at a time; all of them share B and C, whose gradients add up."""
    x, dt, A, B, C, D = (tensor.double().requires_grad_() for tensor in inputs)
    gradient = _gradient(inputs[0]).double()
    reads = []
    for start in range(0, channels, BLOCK):
        some = slice(start, start + BLOCK)
        y = function(x[..., some], dt[..., some], A[some], B, C, D[some])
        y.backward(gradient[..., some])
        reads.append(y.detach())
    grads = [tensor.grad for tensor in (x, dt, A, B, C, D)]
    return torch.cat(reads, 2), [gradient for gradient in grads if gradient is not None]


def _given(steps: int, channels: int) -> list[Tensor]:
    """Log decays and writes (1, t, channels)."""
    generator = torch.Generator().manual_seed(0)
    return [
        F.logsigmoid(torch.randn(1, steps, channels, generator=generator) + 3),
        torch.randn(1, steps, channels, generator=generator),
    ]


def _through_recur(log_decay: Tensor, writes: Tensor) -> Tensor:
    """A head of one number for each channel, its key and its query one."""
    one = writes.new_ones(1, 1, 1, 1).expand(*writes.shape, 1)
    return recur(diagonal(log_decay.unsqueeze(-1)), one, one, writes.unsqueeze(-1)).output.squeeze(-1)


def _pscan(channels: int, keys: int) -> Callable[..., Tensor]:
    """mambapy's scan, whose decays come as they multiply."""
    from mambapy.pscan import pscan  # pyright: ignore[reportMissingImports]

    def function(log_decay: Tensor, writes: Tensor) -> Tensor:
        shape = (1, writes.shape[1], channels, keys)
        return pscan(log_decay.exp().view(shape), writes.view(shape)).reshape(writes.shape)

    return function


def _swept(log_decay: Tensor, writes: Tensor) -> tuple[Tensor, list[Tensor]]:
    """`h_t = a_t h_{t-1} + x_t` in float64 and its gradients, by the loop forward and the loop back."""
    decays, states = log_decay[0].double().exp(), writes[0].double()
    for t in range(1, len(states)):
        states[t].addcmul_(decays[t], states[t - 1])
    back = _gradient(writes)[0].double()
    for t in range(len(states) - 2, -1, -1):
        back[t].addcmul_(decays[t + 1], back[t + 1])
    d_log = torch.zeros_like(back)
    torch.mul(back[1:], decays[1:] * states[:-1], out=d_log[1:])
    return states[None], [d_log[None], back[None]]
