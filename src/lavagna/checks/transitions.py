"""Each transition of the algebra in every form, against its dense matrix."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from lavagna.algebra import dense
from lavagna.algebra.transition import (
    Transition,
    diagonal,
    dplr,
    gated_householder,
    householder,
    identity,
    scalar,
)
from lavagna.checks.row import Row, distance, row, ways
from lavagna.dispatch import recur
from lavagna.forms import FORMS
from lavagna.kernels import serves

# One chunk of 64 and a shorter one.
STEPS, HEADS, KEYS, VALUES = 70, 2, 8, 5

TRANSITIONS = (
    "identity",
    "scalar",
    "diagonal",
    "householder",
    "gated_householder",
    "gated_householder diagonal",
    "dplr",
)


def transition_rows(name: str, dtypes: tuple[torch.dtype, ...], *, seed: int = 0) -> Iterator[Row]:
    """Output and gradients of one transition in every form, as rows called `algebra.name`.

    Gradients are with respect to everything: the transition's parts, q, k, v and the state.
    """
    inputs = _draw(seed)
    wanted = _run(name, inputs, None)
    for dtype in dtypes:
        given = {key: tensor.to(dtype) for key, tensor in inputs.items()}
        for way in ways(FORMS, kernel=serves("cpu")):
            came = _run(name, given, way)
            for quantity in ("output", "gradient"):
                yield row(way, f"algebra.{name}", dtype, quantity, distance(came[quantity], wanted[quantity]))


def _draw(seed: int) -> dict[str, Tensor]:
    """Inputs that float32 holds exactly, so that all precisions answer the same question."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*last: int) -> Tensor:
        return torch.randn(1, STEPS, HEADS, *last, generator=generator)

    key, right = (torch.nn.functional.normalize(normal(KEYS), dim=-1) for _ in range(2))
    tensors = {
        "q": normal(KEYS),
        "k": normal(KEYS),
        "v": normal(VALUES),
        "state": torch.randn(1, HEADS, VALUES, KEYS, generator=generator),
        "scalar": -normal(1).exp() / 8,
        "diagonal": -normal(KEYS).exp() / 8,
        "key": key,
        "beta": 2 * normal(1).sigmoid(),
        "left": -0.5 * right,
        "right": right,
    }
    return {name: tensor.double() for name, tensor in tensors.items()}


def _transition(name: str, x: Mapping[str, Tensor]) -> Transition:
    match name:
        case "identity":
            return identity()
        case "scalar":
            return scalar(x["scalar"])
        case "diagonal":
            return diagonal(x["diagonal"])
        case "householder":
            return householder(x["key"], x["beta"])
        case "gated_householder":
            return gated_householder(x["scalar"], x["key"], x["beta"])
        case "gated_householder diagonal":
            return gated_householder(x["diagonal"], x["key"], x["beta"])
        case "dplr":
            return dplr(x["diagonal"], x["left"], x["right"])
    raise ValueError(f"check: there is no transition {name!r}. There are {', '.join(TRANSITIONS)}.")


def _run(name: str, inputs: Mapping[str, Tensor], way: tuple[str, str] | None) -> dict[str, list[Tensor]]:
    """Output and state, and all gradients of a sum of both; by the definition where no form and backend is given."""
    leaves = {key: tensor.clone().requires_grad_() for key, tensor in inputs.items()}
    a = _transition(name, leaves)
    # The delta rules write with the key they erase with, which the forms make use of; dplr writes with another.
    k = leaves["key" if "householder" in name else "k"]
    operands = leaves["q"], k, leaves["v"], leaves["state"]
    if way is None:
        output, state = dense.recur(a, *operands)
    else:
        output, state = recur(a, *operands, form=way[0], backend=way[1])
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    loss = (output * weights).sum() + state.square().sum()
    used = [leaf for leaf in leaves.values() if leaf is leaves["q"] or _reached(leaf, loss)]
    return {"output": [output.detach(), state.detach()], "gradient": list(torch.autograd.grad(loss, used))}


def _reached(leaf: Tensor, loss: Tensor) -> bool:
    return torch.autograd.grad(loss, leaf, retain_graph=True, allow_unused=True)[0] is not None
