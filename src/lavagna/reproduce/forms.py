"""Forms: one sum, bracketed in every way."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import scalar
from lavagna.dispatch import recur
from lavagna.forms import FORMS
from lavagna.reproduce.row import Row, row

TITLE = "The values 6, 7, 8 with everything before halved at each step give 6, 10, 13 in every form."
SOURCE = "The three forms of retention, Sun et al. 2023, arXiv 2307.08621."

VALUES = (6.0, 7.0, 8.0)
DECAY = 0.5
PUBLISHED = (6.0, 10.0, 13.0)


def totals(
    values: Float[Tensor, " t"], decay: float, *, start: float = 0.0, form: str = "auto", chunk: int | None = None
) -> Float[Tensor, " t"]:
    """The running total of numbers when what is there fades by `decay` at each step, `s_t = decay s_{t-1} + x_t`.

    A memory of one number, `start` before the first step: keys and queries are 1.

    >>> totals(torch.tensor([6.0, 7.0, 8.0], dtype=torch.float64), 0.5, form="chunkwise", chunk=2).tolist()
    [6.0, 10.0, 13.0]
    """
    values = values[None, :, None, None]
    ones = torch.ones_like(values)
    log_decay, memory = (values.new_full((1, 1, 1, 1), x) for x in (math.log(decay), start))
    return recur(scalar(log_decay), ones, ones, values, memory, form=form, chunk=chunk).output.flatten()


def ways(chunks: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """Every form, and the chunkwise one with each of these chunks: a name, and the options of `totals` that say it."""
    flat = {form: {"form": form} for form in FORMS if form != "chunkwise"}
    return flat | {f"chunkwise, chunks of {chunk}": {"form": "chunkwise", "chunk": chunk} for chunk in chunks}


def rows(*, seed: int = 0) -> list[Row]:
    """The total after each value, in every form, chunks of two included; nothing is random."""
    values = torch.tensor(VALUES, dtype=torch.float64)
    return [
        row("forms", f"{way}, after {value:g}", published, ours, within=1e-12)
        for way, options in ways((1, 2, 3)).items()
        for value, published, ours in zip(VALUES, PUBLISHED, totals(values, DECAY, **options).tolist(), strict=True)
    ]
