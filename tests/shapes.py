"""The checker that looks at every annotated call of the package while tests run."""

from typing import Self

from beartype import BeartypeConf, FrozenDict, beartype

# Methods are checked one by one, where Self has no class to stand for; an int is as good as a float, as PEP 484 says.
check = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: object}), is_pep484_tower=True))
