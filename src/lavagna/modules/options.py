"""Options that must be numbers in a range or names of a list, refused in one line where they are not."""

import math
import sys
from collections.abc import Collection


def number(call: str, name: str, given: object, *, most: float = math.inf, zero: bool = False) -> None:
    """Raises ValueError unless `given` is a finite number above 0 (or 0 itself, where `zero`) and at most `most`."""
    real = isinstance(given, int | float) and not isinstance(given, bool)
    if real and given <= sys.float_info.max and (0 < given <= most or (zero and given == 0)):  # pyright: ignore[reportOperatorIssue]
        return
    wanted = ("0 or more" if zero else "above 0") + (f" and at most {most:g}" if most < math.inf else "")
    raise ValueError(f"{call}: {name} must be a finite number {wanted}, but came as {given!r}.")


def below_zero(call: str, name: str, given: object) -> None:
    """Raises ValueError unless `given` is a finite number below 0."""
    real = isinstance(given, int | float) and not isinstance(given, bool)
    if not real or not -sys.float_info.max <= given < 0:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(f"{call}: {name} must be a finite number below 0, but came as {given!r}.")


def whole(call: str, name: str, given: object) -> None:
    """Raises ValueError unless `given` is an int >= 1."""
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"{call}: {name} must be an int >= 1, but came as {given!r}.")


def switch(call: str, name: str, given: object) -> None:
    """Raises ValueError unless `given` is True or False."""
    if not isinstance(given, bool):
        raise ValueError(f"{call}: {name} must be True or False, but came as {given!r}.")


def choice(call: str, name: str, given: object, legal: Collection[str]) -> None:
    """Raises ValueError unless `given` is one of the names in `legal`."""
    if not isinstance(given, str) or given not in legal:
        raise ValueError(f"{call}: {name} must be one of {', '.join(legal)}, but came as {given!r}.")


def step_range(call: str, dt_min: object, dt_max: float) -> None:
    """Raises ValueError unless 0 < dt_min <= dt_max."""
    number(call, "dt_max", dt_max)
    number(call, "dt_min", dt_min, most=dt_max)


def modes_of(call: str, d_state: int) -> int:
    """How many pairs of conjugate modes have `d_state` real degrees of freedom. Raises ValueError unless it is even."""
    whole(call, "d_state", d_state)
    if d_state % 2:
        raise ValueError(f"{call}: d_state must be even for conjugate pairs, but came as {d_state}. Use {d_state + 1}.")
    return d_state // 2
