"""Correct: a memory that answers 7 where 10 is right."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import householder
from lavagna.dispatch import recur
from lavagna.reproduce.row import Row, row

TITLE = (
    "A memory that answers 7 for 10 is set right by beta 1, half right by beta 1/2, and swings if the key is too long."
)
SOURCE = "The rule of Widrow and Hoff 1960, as in DeltaNet (Yang et al. 2024, arXiv 2406.06484)."

TOLD = 7.0
RIGHT = 10.0
UNIT = (0.6, 0.8)
LONG = (1.0, 1.0)
SWINGS = 1000


def answers(
    start: float, target: float, beta: float, *, key: tuple[float, float] = UNIT, steps: int = 1
) -> Float[Tensor, " steps"]:
    """What a memory that answers `start` to a key answers after each of `steps` corrections towards `target`.

    One correction is `S <- S (I - beta k k^T) + beta target k^T`; the answer is `S k`.

    >>> answers(7.0, 10.0, 0.5).round(decimals=12).tolist()
    [8.5]
    """
    k = torch.tensor(key, dtype=torch.float64).expand(1, steps, 1, 2)
    memory = start * k[:, :1] / k[:, :1].square().sum()
    betas = k.new_full((1, steps, 1, 1), beta)
    targets = k.new_full((1, steps, 1, 1), target)
    return recur(householder(k, betas), k, k, betas * targets, memory).output.flatten()


def rows(*, seed: int = 0) -> list[Row]:
    """One correction in three doses, its two halves apart, and a key of norm sqrt 2; nothing is random."""
    doses = [(f"beta {beta:g}: the answer", answer, beta) for beta, answer in ((0.5, 8.5), (1.0, 10.0), (0.0, 7.0))]
    out = [
        row("correct", name, answer, answers(TOLD, RIGHT, beta).item(), within=1e-12) for name, answer, beta in doses
    ]
    erased, written = answers(TOLD, 0.0, 0.5).item(), answers(0.0, RIGHT, 0.5).item()
    out += [
        row("correct", "beta 0.5: left of 7 when half is erased", 3.5, erased, within=1e-12),
        row("correct", "beta 0.5: added when half of 10 is written", 5.0, written, within=1e-12),
        row("correct", "beta 0.5: erased and written together", 8.5, erased + written, within=1e-12),
    ]
    swing = answers(TOLD, RIGHT, 1.0, key=LONG, steps=SWINGS + 1)
    return out + [
        row("correct", f"key of norm sqrt 2: the answer after {after} corrections", answer, ours, within=1e-12)
        for after, answer in ((1, 13.0), (2, 7.0), (3, 13.0), (SWINGS, 7.0), (SWINGS + 1, 13.0))
        for ours in [swing[after - 1].item()]
    ]
