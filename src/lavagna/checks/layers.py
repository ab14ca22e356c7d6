"""Each architecture in every form it has, against its own steps in float64."""

import copy
from collections.abc import Iterator

import torch
from torch import Tensor

from lavagna.checks.row import Row, distance, row, ways
from lavagna.layers import Layer, build, options

BATCH, STEPS, WIDTH, HEADS = 2, 70, 32, 2


def layer_rows(name: str, dtypes: tuple[torch.dtype, ...], *, seed: int = 0) -> Iterator[Row]:
    """Output and gradients of an architecture in every form it has.

    The definition is the layer in float64, called once a token with the state that the call before returned. Gradients
    are with respect to the text and every parameter.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layer = build(name, WIDTH, **({"heads": HEADS} if "heads" in options(name) else {}))
        with torch.no_grad():
            for parameter in layer.parameters():
                # Zeros and ones, as layers start with, would hide what they multiply.
                parameter += 0.1 * torch.randn_like(parameter)
        text = torch.randn(BATCH, STEPS, WIDTH)
    wanted = _run(copy.deepcopy(layer).double(), text.double(), None)
    for dtype in dtypes:
        for way in ways(layer.forms, kernel=_has_kernel(layer, text)):
            came = _run(copy.deepcopy(layer).to(dtype), text.to(dtype), way)
            for quantity in ("output", "gradient"):
                yield row(way, name, dtype, quantity, distance(came[quantity], wanted[quantity]))


def _has_kernel(layer: Layer, text: Tensor) -> bool:
    try:
        layer(text[:, :1], backend="cpu")
    except ValueError:
        return False
    return "recurrent" in layer.forms


def _run(layer: Layer, text: Tensor, way: tuple[str, str] | None) -> dict[str, list[Tensor]]:
    """The mixed text, and all gradients of a sum over it; by torch and token by token where no way is given."""
    text = text.requires_grad_()
    y = _stepped(layer, text) if way is None else layer(text, form=way[0], backend=way[1]).y
    loss = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()
    return {"output": [y.detach()], "gradient": list(torch.autograd.grad(loss, [text, *layer.parameters()]))}


def _stepped(layer: Layer, text: Tensor) -> Tensor:
    state, rows = None, []
    for t in range(text.shape[1]):
        y, state = layer(text[:, t : t + 1], state, form="recurrent", backend="torch")
        rows.append(y)
    return torch.cat(rows, 1)
