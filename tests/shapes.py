"""The checker that looks at every annotated call of the package while tests run."""

from collections.abc import Callable
from typing import Self

from beartype import BeartypeConf, FrozenDict, beartype

# Methods are checked one by one, where Self has no class to stand for; an int is as good as a float, as PEP 484 says.
_check = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: object}), is_pep484_tower=True))


def check(function: Callable) -> Callable:
    """The function with its annotations checked at every call; one that is made inside another is left as it is.

    Such a function is made anew at every call, and to wrap it takes longer than most of them run.
    """
    return function if "<locals>" in function.__qualname__ else _check(function)
