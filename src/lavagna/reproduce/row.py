"""One line of a claim: the number that was published beside the number that comes out here."""

from typing import NamedTuple


class Row(NamedTuple):
    """A quantity of a claim, as published and as computed by this library; `quantity` names its tolerance.

    `published` is None where the paper says it in words or in algebra and prints no number.
    """

    claim: str
    quantity: str
    published: float | None
    ours: float
    holds: bool


def row(claim: str, quantity: str, published: float, ours: float, *, within: float) -> Row:
    """A row that holds where the two numbers differ by no more than `within`.

    `within` says what a printed number leaves open: 0.35 stands for anything from 0.345 to 0.355, so half a unit of its
    last digit, and a random experiment adds three standard errors. An equality of algebra is held to 1e-12.

    >>> row("fade", "ten steps of 0.9", 0.35, 0.9**10, within=0.005)
    Row(claim='fade', quantity='ten steps of 0.9 (±0.005)', published=0.35, ours=0.3486..., holds=True)
    """
    return Row(claim, f"{quantity} (±{within:g})", published, ours, abs(ours - published) <= within)


def unprinted(claim: str, quantity: str, right: float, ours: float, *, within: float) -> Row:
    """A row like `row`'s of a number that no paper printed, for it follows from what it says.

    >>> unprinted("faces", "difference", 0, 1e-17, within=1e-12)
    Row(claim='faces', quantity='difference (0 ±1e-12)', published=None, ours=1e-17, holds=True)
    """
    return Row(claim, f"{quantity} ({right:g} ±{within:g})", None, ours, abs(ours - right) <= within)
