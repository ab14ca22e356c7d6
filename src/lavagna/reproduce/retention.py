"""Retention: the memory of one RetNet head that is told the same thing again and again."""

import torch

from lavagna.reproduce.forms import totals, ways
from lavagna.reproduce.row import Row, row

TITLE = (
    "Twelve ones at RetNet's first decay, 1 - 2^-5, leave (1 - gamma^12) / (1 - gamma) = 10.137966, whatever the chunk."
)
SOURCE = "Sun et al. 2023, arXiv 2307.08621, before any normalization of scores."

GAMMA = 1 - 2**-5
STEPS = 12
PUBLISHED = 10.137966


def rows(*, seed: int = 0) -> list[Row]:
    """The read after twelve steps in every form, with chunks that divide twelve and chunks that don't."""
    ones = torch.ones(STEPS, dtype=torch.float64)
    return [
        row("retention", way, PUBLISHED, totals(ones, GAMMA, **options)[-1].item(), within=5e-7)
        for way, options in ways((3, 5, 12, 16)).items()
    ]
