"""Duality: one head of Mamba-2 as attention with a mask, as a sum in chunks, and as a state-space scan."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import scalar
from lavagna.dispatch import recur
from lavagna.lti import System
from lavagna.reproduce.row import Row, row, unprinted

TITLE = "One decay a head makes a state space and a masked attention the same matrix: one number three ways."
SOURCE = "Structured state-space duality, Dao and Gu 2024, arXiv 2405.21060."

# What is written, and what each step leaves of what was there: 4, then 4/2 + 2, then (4/2 + 2)/4 + 8.
WRITTEN = (4.0, 2.0, 8.0)
KEPT = (1.0, 0.5, 0.25)
READ = (4.0, 4.0, 9.0)

STEPS, STATE, VALUES = 96, 4, 3

Head = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def mask(log_decay: Float[Tensor, " t"]) -> Float[Tensor, "t t"]:
    """What is left at step i of what was written at step j: `exp(sum of log_decay over j < r <= i)`, 0 above.

    Every sum is made of its own terms. As differences of one running sum they would lose their digits where it is long.

    >>> mask(torch.tensor([0.5, 0.5, 0.25]).log()).round(decimals=6).tolist()
    [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.125, 0.25, 1.0]]
    """
    steps = len(log_decay)
    spans = torch.tril(log_decay[:, None].expand(steps, steps), -1).cumsum(0)
    return torch.tril(spans.exp())


def attention(
    log_decay: Float[Tensor, " t"], C: Float[Tensor, "t n"], B: Float[Tensor, "t n"], x: Float[Tensor, "t v"]
) -> Float[Tensor, "t v"]:
    """`(L * C B^T) x`: the scores of every pair of steps, faded by the mask; no softmax."""
    return (mask(log_decay) * (C @ B.T)) @ x


def bracketed(form: str, chunk: int | None = None) -> Head:
    """The same head as a recurrence, in one of the library's forms."""

    def head(log_decay: Tensor, C: Tensor, B: Tensor, x: Tensor) -> Tensor:
        q, k, v = (y[None, :, None] for y in (C, B, x))
        return recur(scalar(log_decay[None, :, None, None]), q, k, v, form=form, chunk=chunk).output[0, :, 0]

    return head


WAYS: dict[str, Head] = {
    "attention with a mask": attention,
    "a sum in chunks of two": bracketed("chunkwise", 2),
    "a state-space scan": bracketed("scan"),
}


def rank(block: Float[Tensor, "i j"]) -> int:
    """How many directions a matrix has, above rounding."""
    return int(torch.linalg.matrix_rank(block, rtol=1e-12))


def rows(*, seed: int = 0) -> list[Row]:
    """Three reads three ways; then a random head, the rank of its matrix, and a head with a constant decay."""
    generator = torch.Generator().manual_seed(seed)
    ones, written = torch.ones(3, 1, dtype=torch.float64), torch.tensor(WRITTEN, dtype=torch.float64)[:, None]
    kept = torch.tensor(KEPT, dtype=torch.float64).log()
    out = [
        row("duality", f"{way}: read {step}", right, ours, within=1e-12)
        for way, head in WAYS.items()
        for step, (right, ours) in enumerate(zip(READ, head(kept, ones, ones, written)[:, 0].tolist(), strict=True), 1)
    ]
    C, B = torch.randn(2, STEPS, STATE, dtype=torch.float64, generator=generator)
    x = torch.randn(STEPS, VALUES, dtype=torch.float64, generator=generator)
    log_decay = -torch.rand(STEPS, dtype=torch.float64, generator=generator)
    reads = {way: head(log_decay, C, B, x) for way, head in WAYS.items()}
    masked = reads.pop("attention with a mask")
    out += [
        unprinted(
            "duality", f"random head, {way}: relative difference from attention", 0.0, _apart(y, masked), within=1e-12
        )
        for way, y in reads.items()
    ]
    corner = (mask(log_decay) * (C @ B.T))[STEPS // 2 :, : STEPS // 2]
    out.append(
        unprinted(
            "duality", f"rank of its matrix's lower left corner, {STATE} in the state", STATE, rank(corner), within=0
        )
    )
    return [*out, _constant(C[0], B[0], x[:, 0])]


def _constant(C: Tensor, B: Tensor, x: Tensor) -> Row:
    """With rules that never change the mask is one filter, and the head one linear system."""
    rate = x.new_full((len(B),), math.log(0.9))
    steady = attention(rate[:1].expand(len(x)), C.expand(len(x), -1), B.expand(len(x), -1), x[:, None])[:, 0]
    filtered = System(rate, B, C, method="mamba").convolve(x[None])[0]
    what = "constant decay, a linear system's filter: relative difference from attention"
    return unprinted("duality", what, 0.0, _apart(filtered, steady), within=1e-12)


def _apart(y: Tensor, right: Tensor) -> float:
    return ((y - right).abs().max() / right.abs().max()).item()
