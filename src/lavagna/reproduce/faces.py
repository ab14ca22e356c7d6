"""Faces: one linear system step by step, and the same system as one long filter."""

import math

import torch
from torch import Tensor

from lavagna.lti import System, hippo, spectrum
from lavagna.lti.discretize import METHODS
from lavagna.reproduce.row import Row, unprinted

TITLE = "A system whose rules never change answers the same step by step and as one filter, under every discretization."
SOURCE = "Gu et al. 2021, arXiv 2110.13985; Gu, Goel and Ré 2022, arXiv 2111.00396."

# A tub that loses half of its water in a minute, and a tap that gives two liters a minute, then is shut.
KEPT = 0.5
POURED = (2.0, 2.0, 2.0, 0.0)
LEVELS = (2.0, 3.0, 3.5, 1.75)

# Small enough for the fastest mode to fade under the Euler rule too.
STEPS, MODES, STEP = 300, 16, 0.002


def tub() -> System:
    """The level of a tub, `h_t = h_{t-1} / 2 + u_t`: what is poured counts whole, as in Mamba's rule for the input."""
    one = torch.ones(1, dtype=torch.float64)
    return System(one * math.log(KEPT), one, one, 0.0, 1.0, "mamba")


def step_by_step(system: System, u: Tensor) -> Tensor:
    """The answers (t) to one signal (t), each from the state before it and nothing else."""
    answers, state = [], None
    for u_t in u[:, None]:
        y, state = system.step(u_t, state)
        answers.append(y)
    return torch.cat(answers)


def systems(method: str, generator: torch.Generator) -> dict[str, System]:
    """A dense and a diagonal system with random ways to read them: HiPPO-LegS, and S4D's Fourier modes."""
    (A, B), modes = hippo("legs", MODES), spectrum("lin", MODES)
    readings = torch.randn(2, MODES, dtype=torch.float64, generator=generator)
    return {
        "LegS, dense": System(A, B, readings[0], 0.5, STEP, method),
        "S4D-Lin, diagonal": System(modes, torch.ones_like(modes), readings[1, : len(modes)], 0.5, STEP, method),
    }


def rows(*, seed: int = 0) -> list[Row]:
    """The tub by both faces, then the largest difference between them for random signals from a random state."""
    water = torch.tensor(POURED, dtype=torch.float64)
    faces = {"step by step": step_by_step(tub(), water), "as one filter": tub().convolve(water[None])[0]}
    out = [
        unprinted("faces", f"tub {face}: level after minute {minute}", level, ours, within=1e-12)
        for face, levels in faces.items()
        for minute, (level, ours) in enumerate(zip(LEVELS, levels.tolist(), strict=True), 1)
    ]
    generator = torch.Generator().manual_seed(seed)
    for method in METHODS:
        for name, system in systems(method, generator).items():
            u = torch.randn(2, STEPS, dtype=torch.float64, generator=generator)
            before = torch.randn(2, len(system.B), dtype=torch.float64, generator=generator)
            one, other = system.recur(u, before).y, system.convolve(u, before)
            apart = ((one - other).abs().max() / one.abs().max()).item()
            out.append(unprinted("faces", f"{name}, {method}: relative difference", 0.0, apart, within=1e-12))
    return out
