"""The checker that looks at every annotated call of the package while tests run."""

from typing import Self

from beartype import BeartypeConf, FrozenDict, beartype

# Methods are checked one by one, where Self has no class to stand for.
check = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: object})))
