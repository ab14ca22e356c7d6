"""Rotary positions: pairs of channels turned by an angle that grows with the position.

A query and a key that are turned so meet as if only their distance had been told. Su et al. 2021, arXiv 2104.09864.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lavagna.modules.heads import Heads
from lavagna.modules.options import number


def interleaved(x: Float[Tensor, "*axes k"]) -> Float[Tensor, "*axes k"]:
    """The partner of each channel where neighbors make a pair (RetNet): `(-x1, x0, -x3, x2, ...)`."""
    pairs = x.unflatten(-1, (-1, 2))
    return torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2)


def halves(x: Float[Tensor, "*axes k"]) -> Float[Tensor, "*axes k"]:
    """The partner of each channel where the first half pairs with the second (Llama): `(-second, first)`."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def rotate(
    x: Float[Tensor, "b t h k"],
    positions: Int[Tensor, "b t"],
    exponents: Float[Tensor, " pairs"],
    *,
    base: float = 10000.0,
    pairs: str = "halves",
) -> Float[Tensor, "b t h k"]:
    """Turn pair j of every vector by `position * base^-exponent_j`; `pairs` is "halves" or "interleaved".

    With fewer exponents than pairs the first channels are those pairs, and what lies behind them stays.

    Lengths stay, and `rotate(q, i) . rotate(k, j)` depends on i and j by i - j alone. Angles, sines and cosines are
    float64 whatever `x` is, since float32 angles are off by a hundredth at position 100 000.

    >>> q, k = torch.randn(2, 1, 1, 1, 4, dtype=torch.float64)
    >>> def meet(i, j):
    ...     at = [torch.tensor([[position]]) for position in (i, j)]
    ...     return (rotate(q, at[0], standard(4)) * rotate(k, at[1], standard(4))).sum()
    >>> torch.allclose(meet(7, 3), meet(1004, 1000))
    True
    """
    channels = 2 * len(exponents)
    if channels < x.shape[-1]:
        first, rest = x[..., :channels], x[..., channels:]
        return torch.cat([rotate(first, positions, exponents, base=base, pairs=pairs), rest], -1) if channels else x
    frequencies = base ** -exponents.to(torch.float64)
    angles = positions[:, :, None, None] * frequencies
    angles = torch.cat([angles, angles], -1) if pairs == "halves" else angles.repeat_interleave(2, -1)
    partner = halves(x) if pairs == "halves" else interleaved(x)
    turned = torch.promote_types(x.dtype, torch.float32)
    return (x * angles.cos().to(turned) + partner * angles.sin().to(turned)).to(x.dtype)


def turn(
    x: Float[Tensor, "*axes k"], angles: Float[Tensor, "*turned pairs"], *, pairs: str = "halves"
) -> Float[Tensor, "*axes k"]:
    """Turn the first pairs of every vector by angles of their own, one a pair; what lies behind them stays.

    `pairs` as for `rotate`; with fewer angles than pairs, halves are channels j and j + k / 2 all the same. Leading
    axes of `angles` broadcast. Sines and cosines are taken in the dtype of `angles`, products in that of `x`.

    >>> turn(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([torch.pi / 2]), pairs="halves").round().tolist()
    [-3.0, 2.0, 1.0, 4.0]
    """
    both = x.unflatten(-1, (2, -1)) if pairs == "halves" else x.unflatten(-1, (-1, 2)).mT
    count = angles.shape[-1]
    (first, second), rest = both[..., :count].unbind(-2), both[..., count:]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    turned = torch.stack([first * cos - second * sin, first * sin + second * cos], -2)
    both = torch.cat([turned, rest], -1)
    return (both if pairs == "halves" else both.mT).flatten(-2)


def turned_channels(call: str, heads: Heads, fraction: float) -> int:
    """How many channels of a head turn: `fraction` of them. Raises ValueError unless that is an even whole number."""
    number(call, "rotary_fraction", fraction, most=1, zero=True)
    channels = heads.size * fraction
    if fraction == 1 and heads.size % 2:
        raise ValueError(
            f"{call}: head_dim must be even, for channels turn in pairs, but is {heads.size}. "
            f"Use head_dim={heads.size + 1} with heads={heads.count}."
        )
    even = 2 * round(channels / 2)
    if not math.isclose(channels, even, rel_tol=1e-9):
        raise ValueError(
            f"{call}: rotary_fraction={fraction} of head_dim = {heads.size} is no even number of channels, which turn "
            f"in pairs. Use rotary_fraction={even / heads.size:g}."
        )
    return even


def standard(size: int, *, device: torch.device | None = None) -> Float[Tensor, " pairs"]:
    """Exponents 0, 2/k, 4/k, ... below 1, one a pair of `size` channels (Su et al. 2021)."""
    return torch.arange(0, size, 2, device=device, dtype=torch.float64) / size


def closed(size: int, *, device: torch.device | None = None) -> Float[Tensor, " pairs"]:
    """Exponents evenly from 0 up to and with 1, one a pair of `size` channels (RetNet)."""
    return torch.linspace(0, 1, size // 2, device=device, dtype=torch.float64)
