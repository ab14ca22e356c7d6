"""How a width is shared among heads."""

import math
from itertools import count
from typing import NamedTuple

from lavagna.modules.options import number, whole


class Heads(NamedTuple):
    """How many heads, and how wide each is."""

    count: int
    size: int

    @property
    def width(self) -> int:
        """The channels of all heads together."""
        return self.count * self.size


def heads_of(
    call: str, width: int, heads: int | None, head_dim: int | None, *, what: str = "d_model", most: int = 64
) -> Heads:
    """The heads of a width: what was asked for, else heads of the largest size up to `most` that divides the width.

    A default size is a multiple of 8 where the width is.

    Raises ValueError where `heads` or `head_dim`, given alone, doesn't divide the width. Given both, they stand as they
    are: the projections need not be square.

    >>> heads_of("layer", 48, None, None)
    Heads(count=1, size=48)
    >>> heads_of("layer", 1072, None, None)
    Heads(count=67, size=16)
    >>> heads_of("layer", 1008, None, None)
    Heads(count=18, size=56)
    """
    for name, given in (("heads", heads), ("head_dim", head_dim)):
        if given is not None:
            whole(call, name, given)
    if heads is not None and head_dim is not None:
        return Heads(heads, head_dim)
    if heads is not None:
        return Heads(heads, _divided(call, width, "heads", heads, what))
    if head_dim is not None:
        return Heads(_divided(call, width, "head_dim", head_dim, what), head_dim)
    unit = 8 if width % 8 == 0 else 1
    size = max(size for size in range(unit, max(most, unit) + 1, unit) if width % size == 0)
    return Heads(width // size, size)


def _divided(call: str, width: int, name: str, given: int, what: str) -> int:
    if width % given:
        nearest = _nearest(width, given)
        raise ValueError(
            f"{call}: {name}={given} does not divide {what} = {width}. Use {name}={nearest}, "
            "or give both heads and head_dim."
        )
    return width // given


def _nearest(width: int, given: int) -> int:
    """The divisor that is nearest to a number, the smaller of two."""
    # Outward from the number: a width may be too large to try all that could divide it.
    start = max(min(given, width), 1)
    near = (divisor for away in count() for divisor in (start - away, start + away))
    return next(divisor for divisor in near if divisor > 0 and width % divisor == 0)


def value_heads_of(call: str, keys: Heads, value_heads: int | None, expand: float) -> Heads:
    """Value heads: a multiple of the key heads, each `expand` times as wide. Raises ValueError where one can't be."""
    count = keys.count if value_heads is None else value_heads
    if not isinstance(count, int) or count < 1 or count % keys.count:
        mend = max(round(count / keys.count), 1) * keys.count if isinstance(count, int | float) else keys.count
        raise ValueError(
            f"{call}: value_heads must be a multiple of heads = {keys.count}, but came as {count!r}. "
            f"Use value_heads={mend}."
        )
    return Heads(count, expanded(call, "head_dim", keys.size, expand))


def key_heads_of(call: str, queries: Heads, kv_heads: int | None) -> Heads:
    """Heads of keys and values: as many as of queries, or a divisor of that. Raises ValueError where one can't be."""
    if kv_heads is None:
        return queries
    whole(call, "kv_heads", kv_heads)
    if queries.count % kv_heads:
        nearest = _nearest(queries.count, kv_heads)
        raise ValueError(
            f"{call}: kv_heads={kv_heads} does not divide heads = {queries.count}. Use kv_heads={nearest}."
        )
    return Heads(kv_heads, queries.size)


def groups_of(call: str, d_model: int, heads: Heads, groups: int, d_state: int | None) -> Heads:
    """Groups of keys of `d_state` channels, d_model up to 128 by default, each read by as many of the heads.

    Raises ValueError where `groups` or `d_state` is no whole number, or where the groups don't divide the heads.
    """
    keys = Heads(groups, min(d_model, 128) if d_state is None else d_state)
    whole(call, "groups", keys.count)
    whole(call, "d_state", keys.size)
    if heads.count % groups:
        nearest = _nearest(heads.count, groups)
        raise ValueError(f"{call}: groups={groups} does not divide heads = {heads.count}. Use groups={nearest}.")
    return keys


def expanded(call: str, what: str, width: int, expand: float, *, option: str = "expand") -> int:
    """`width` times `expand`, which must come out as a whole number >= 1."""
    number(call, option, expand)
    # A ratio such as 4 / 3 is a float that misses the whole number by a digit or two.
    size = width * expand
    if round(size) < 1 or not math.isclose(size, round(size), rel_tol=1e-12):
        mend = max(round(size), 1) / width
        raise ValueError(
            f"{call}: {option}={expand} times {what} = {width} is no whole number of channels. Use {option}={mend:g}."
        )
    return round(size)
