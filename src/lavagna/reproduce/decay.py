"""Decay: how fast a filter of one mode forgets."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.lti import System
from lavagna.reproduce.faces import tub
from lavagna.reproduce.row import Row, row, unprinted

TITLE = "A decay of 0.9 leaves half a percent after 50 steps and half a percent of that after 100: why A is not random."
SOURCE = "The powers in the kernel of Gu, Goel and Ré 2022, arXiv 2111.00396."


def one_mode(decay: float) -> System:
    """A system of one mode that keeps `decay` of its state at each step and takes its input as it is."""
    one = torch.ones(1, dtype=torch.float64)
    return System(one * math.log(decay), one, one, 0.0, 1.0, "mamba")


def left_over(decay: float, steps: int) -> Float[Tensor, " lags"]:
    """The filter up to a lag of `steps`: what an input of so many steps ago still counts."""
    return one_mode(decay).kernel(steps + 1)


def rows(*, seed: int = 0) -> list[Row]:
    """What is left of an input after 50 and 100 steps, and the filter of a tub that halves; nothing is random."""
    filters = left_over(0.9, 100).tolist()
    silence = torch.zeros(1, 100, dtype=torch.float64)
    run = one_mode(0.9).recur(silence, torch.ones_like(silence[:, :1])).y[0].tolist()
    out = [
        row("decay", f"0.9 to the {power}, in {way}", published, ours[power - offset], within=within)
        for power, published, within in ((50, 0.005, 5e-4), (100, 2.7e-5, 5e-7))
        for way, ours, offset in (("the filter", filters, 0), ("the recurrence", run, 1))
    ]
    return out + [
        unprinted("decay", f"tub that halves: filter at lag {lag}", 0.5**lag, ours, within=1e-12)
        for lag, ours in enumerate(tub().kernel(4).tolist())
    ]
