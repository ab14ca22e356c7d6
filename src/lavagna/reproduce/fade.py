"""Fade: what a gate leaves of yesterday's memory."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import Transition, diagonal, scalar
from lavagna.dispatch import recur
from lavagna.reproduce.row import Row, row

TITLE = "A gate of 0.9 leaves a third after ten steps; a diagonal gate keeps one channel and halves another."
SOURCE = "The scalar gate of RetNet and Mamba-2, the diagonal one of GLA (Yang et al. 2024, arXiv 2312.06635)."


def left_over(a: Transition, channels: int, steps: int) -> Float[Tensor, "steps channels"]:
    """What is left, after each step, of a memory that held 1 in every channel and is told nothing more."""
    start = torch.ones(1, 1, 1, channels, dtype=torch.float64)
    # One query a channel: a step reads one column, so that every column takes a row of the batch.
    queries = torch.eye(channels, dtype=torch.float64)[:, None, None].expand(-1, steps, 1, -1)
    nothing = torch.zeros_like(queries)
    output = recur(a, queries, nothing, nothing[..., :1], start.expand(channels, -1, -1, -1)).output
    return output[:, :, 0, 0].T


def rows(*, seed: int = 0) -> list[Row]:
    """A scalar gate after ten steps, a diagonal gate after one and after two; nothing is random."""
    even = left_over(scalar(torch.tensor([0.9], dtype=torch.float64).log()[None, None, None]), 1, 10)
    uneven = left_over(diagonal(torch.tensor([0.99, 0.5], dtype=torch.float64).log()[None, None, None]), 2, 2)
    return [
        row("fade", "scalar gate 0.9: left after 10 steps", 0.35, even[9, 0].item(), within=0.005),
        row("fade", "diagonal gate: left of the kept channel after 1 step", 0.99, uneven[0, 0].item(), within=1e-12),
        row("fade", "diagonal gate: left of the halved channel after 1 step", 0.5, uneven[0, 1].item(), within=1e-12),
        row("fade", "diagonal gate: left of the halved channel after 2 steps", 0.25, uneven[1, 1].item(), within=1e-12),
    ]
