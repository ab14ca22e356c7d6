"""Eigenvalues: which transitions can turn what they find to its negative, and how far RWKV-7 gets.

Let kappa be of length one, w the decays and a the rates of RWKV-7, `A = diag(w) - kappa (a * kappa)^T`. With
`B = diag(a)` the matrix `B^{1/2} A B^{-1/2} = diag(w) - (B^{1/2} kappa) (B^{1/2} kappa)^T` is symmetric and has the
same eigenvalues, so they are real. By Weyl's inequality none is above the largest w, and none below

    min w - sum_i a_i kappa_i^2  >=  min w - max a,

which is met where all w and all a are alike. Rates below 1 and decays above e^{-e^{-1/2}} = 0.545 stop before -0.455;
rates up to 2, or decays down to 0, are what [-1, 1] takes.
"""

import math

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.nn.functional import normalize

from lavagna.algebra.transition import Transition, diagonal, dplr, gated_householder, householder
from lavagna.dispatch import recur
from lavagna.layers import registry
from lavagna.layers.rwkv7 import RWKV7
from lavagna.reproduce.row import Row, row

TITLE = (
    "Decays alone stay above 0, a delta rule with beta up to 2 reaches -1, and so does RWKV-7's general form; with its "
    "rates in (0, 1) and decays above 0.545 it stops near -0.45."
)
SOURCE = "Grazzi et al. 2025, arXiv 2411.12537, and Peng et al. 2025, arXiv 2503.14456, which speaks of all of [-1, 1]."

CHANNELS = 16
TOKENS = 400
# Where sigmoids are 1 to the last digit.
SURE = 40.0
STOP = math.exp(-math.exp(-0.5)) - 1
TURNS = 11


def matrix(a: Transition) -> Shaped[Tensor, "k k"]:
    """The matrix of a transition of one step: what it leaves of a memory that is the identity."""
    nothing = torch.zeros(1, 1, 1, CHANNELS, dtype=torch.float64)
    return recur(a, nothing, nothing, nothing, torch.eye(CHANNELS, dtype=torch.float64)[None, None]).state[0, 0]


def least(matrices: Tensor) -> float:
    """The least eigenvalue of matrices whose eigenvalues are real."""
    return torch.linalg.eigvals(matrices).real.min().item()


def rwkv7_matrices(layer: RWKV7, x: Float[Tensor, "b 1 d"]) -> Float[Tensor, "b k k"]:
    """What a layer of one head leaves of a memory that is the identity, token by token, where it writes nothing."""
    with torch.no_grad():
        layer.value.weight.zero_()
        start = layer.initial_state(len(x), dtype=torch.float64)
        start = start.replace(memory=torch.eye(CHANNELS, dtype=torch.float64).expand_as(start.memory))
        return layer(x, start).state.memory[:, 0]


def rwkv7(generator: torch.Generator, *, base: float | None) -> Float[Tensor, "b k k"]:
    """Transitions of an RWKV-7 layer: with every decay and rate at `base` before its sigmoid, else wherever."""
    layer = registry.build("rwkv7", CHANNELS, heads=1).double()
    assert isinstance(layer, RWKV7)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        for vector in (layer.w0, layer.a0):
            vector.mul_(8) if base is None else vector.fill_(base)
        if base is not None:
            layer.decay.up.weight.zero_()
            layer.rate.up.weight.zero_()
    return rwkv7_matrices(layer, torch.randn(TOKENS, 1, CHANNELS, generator=generator, dtype=torch.float64))


def general(key: Tensor, decay: float, rate: float) -> Transition:
    """RWKV-7's general form along one key, every decay and every rate alike."""
    return dplr(torch.full_like(key, decay).log(), -key, rate * key)


def swings(a: Transition, key: Tensor) -> float:
    """What is left after `TURNS` steps of a memory that holds 1 under the key."""
    nothing = torch.zeros(1, TURNS, 1, CHANNELS, dtype=torch.float64)
    return recur(a, key.expand_as(nothing), nothing, nothing[..., :1], key[:, 0, :, None]).output[0, -1].item()


def rows(*, seed: int = 0) -> list[Row]:
    """The least eigenvalue that each rule reaches at the ends of its gates, and what RWKV-7's own gates let through."""
    generator = torch.Generator().manual_seed(seed)
    key = normalize(torch.randn(1, 1, 1, CHANNELS, generator=generator, dtype=torch.float64), dim=-1)
    one, gone = torch.ones(1, 1, 1, 1, dtype=torch.float64), torch.full((1, 1, 1, CHANNELS), -math.inf).double()
    ends = {
        "decays down to 0": (diagonal(gone), 0.0),
        "decays with an imaginary part of pi": (diagonal(torch.full_like(key, math.pi) * 1j), -1.0),
        "delta rule, beta up to 1": (householder(key, one), 0.0),
        "delta rule, beta up to 2": (householder(key, 2 * one), -1.0),
        "gated delta rule, beta up to 2, half kept": (gated_householder((one / 2).log(), key, 2 * one), -0.5),
        "RWKV-7, general form: rates up to 2, all kept": (general(key, 1.0, 2.0), -1.0),
        "RWKV-7, general form: rates up to 1, nothing kept": (general(key, 1e-300, 1.0), -1.0),
        "RWKV-7, general form: rates up to 1, 0.545 kept": (general(key, STOP + 1, 1.0), STOP),
    }
    found = [
        row("eigenvalues", f"least: {name}", published, least(matrix(a)), within=1e-9)
        for name, (a, published) in ends.items()
    ]
    found.append(
        row(
            "eigenvalues",
            "least: the rwkv7 layer, gates wide open",
            STOP,
            least(rwkv7(generator, base=SURE)),
            within=1e-9,
        )
    )
    found.append(row("eigenvalues", "the same, as printed", -0.45, least(rwkv7(generator, base=SURE)), within=0.005))
    below = (torch.linalg.eigvals(rwkv7(generator, base=None)).real < STOP - 1e-9).sum().item()
    found.append(
        row("eigenvalues", f"eigenvalues below that in {TOKENS} random tokens of the layer", 0, below, within=0)
    )
    for name, rate, kept in (("rates up to 2, all kept", 2.0, 1.0), ("its own gates, wide open", 1.0, STOP + 1)):
        left = swings(general(key, kept, rate), key)
        found.append(
            row(
                "eigenvalues",
                f"left of 1 after {TURNS} turns: RWKV-7, {name}",
                (kept - rate) ** TURNS,
                left,
                within=1e-12,
            )
        )
    return found
