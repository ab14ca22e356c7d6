"""Each transition's inputs and calls, as forms and kernels are measured on them."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lavagna.algebra.transition import Transition, diagonal, dplr, gated_householder, householder, identity, scalar
from lavagna.bench.clock import Job
from lavagna.dispatch import recur

HEADS, CHUNK = 4, 64
NAMES = (
    "identity",
    "scalar",
    "diagonal",
    "householder",
    "gated_householder",
    "gated_householder diagonal",
    "dplr",
)
# Those that correct what the memory holds, by a rank-one part.
CORRECTING = ("householder", "gated_householder", "gated_householder diagonal", "dplr")
Inputs = dict[str, Tensor]


class Way(NamedTuple):
    """How a recurrence is computed."""

    form: str
    backend: str
    chunk: int | None = CHUNK


def draw(size: int, steps: int) -> Inputs:
    """Every tensor that a transition of keys and values of a size may take, in float32, b 1 and h 4."""
    generator = torch.Generator().manual_seed(0)

    def normal(last: int) -> Tensor:
        return torch.randn(1, steps, HEADS, last, generator=generator)

    return {
        "q": normal(size),
        "k": F.normalize(normal(size), dim=-1),
        "v": normal(size),
        "scalar": F.logsigmoid(normal(1) + 3),
        "diagonal": F.logsigmoid(normal(size) + 3),
        "beta": normal(1).sigmoid(),
        "left": -0.5 * F.normalize(normal(size), dim=-1),
        "right": F.normalize(normal(size), dim=-1),
    }


def transition(name: str, x: Inputs) -> Transition:
    """The transition of a name, of inputs that `draw` made."""
    return {
        "identity": lambda: identity(),
        "scalar": lambda: scalar(x["scalar"]),
        "diagonal": lambda: diagonal(x["diagonal"]),
        "householder": lambda: householder(x["k"], x["beta"]),
        "gated_householder": lambda: gated_householder(x["scalar"], x["k"], x["beta"]),
        "gated_householder diagonal": lambda: gated_householder(x["diagonal"], x["k"], x["beta"]),
        "dplr": lambda: dplr(x["diagonal"], x["left"], x["right"]),
    }[name]()


def output(name: str, x: Inputs, way: Way) -> Tensor:
    """The reads of a transition."""
    return recur(transition(name, x), x["q"], x["k"], x["v"], form=way.form, backend=way.backend, chunk=way.chunk)[0]


def gradients(name: str, x: Inputs, way: Way, gradient: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The reads, and the gradients of every input that has one."""
    y = output(name, x, way)
    found = torch.autograd.grad(y, list(x.values()), gradient.to(y.dtype), allow_unused=True)
    return y.detach(), [d for d in found if d is not None]


def job(name: str, size: int, steps: int, way: Way, *, backward: bool) -> Job:
    """One forward pass, or a forward and a backward pass, as a job to be timed."""
    x = {key: tensor.requires_grad_(backward) for key, tensor in draw(size, steps).items()}
    gradient = torch.randn(1, steps, HEADS, size)

    def run() -> None:
        with torch.set_grad_enabled(backward):
            if backward:
                gradients(name, x, way, gradient)
            else:
                output(name, x, way)

    return run
