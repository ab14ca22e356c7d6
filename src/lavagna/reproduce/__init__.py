"""The field's own small experiments: what was published, and the number that this library gives.

A claim is one file that says `TITLE`, `SOURCE` and `rows(*, seed)`; every number called ours goes through the public
functions of the library, `lavagna.recur` above all. One that takes minutes says `SLOW = True`.
"""

from types import ModuleType

from lavagna.reproduce import (
    correct,
    decay,
    discretization,
    duality,
    eigenvalues,
    faces,
    fade,
    forms,
    hippo,
    hippo_init,
    limits,
    lssl_cost,
    recall,
    rescalings,
    retention,
    rwkv_average,
    stabilizer,
)
from lavagna.reproduce.row import Row

CLAIMS: dict[str, ModuleType] = {
    "recall": recall,
    "forms": forms,
    "fade": fade,
    "correct": correct,
    "limits": limits,
    "retention": retention,
    "rescalings": rescalings,
    "stabilizer": stabilizer,
    "hippo": hippo,
    "faces": faces,
    "decay": decay,
    "duality": duality,
    "lssl_cost": lssl_cost,
    "hippo_init": hippo_init,
    "discretization": discretization,
    "rwkv_average": rwkv_average,
    "eigenvalues": eigenvalues,
}


def names() -> list[str]:
    """Every claim that can be run."""
    return list(CLAIMS)


def is_slow(name: str) -> bool:
    """Whether a claim takes minutes, not seconds. Raises ValueError on a name that isn't a claim."""
    return getattr(_claim("is_slow", name), "SLOW", False)


def describe(name: str) -> str:
    """What a claim says, in one sentence, with its source. Raises ValueError on a name that isn't a claim."""
    claim = _claim("describe", name)
    return f"{claim.TITLE} {claim.SOURCE}"


def run(name: str, *, seed: int = 0) -> list[Row]:
    """Compute a claim anew and set every number beside the published one.

    On one CPU thread's worth of work, at most a few seconds, and in float64, but for the slow ones (`is_slow`); `seed`
    draws whatever is random and the numbers are a function of it. Raises ValueError on a name that isn't a claim.

    >>> all(row.holds for row in run("forms"))
    True
    """
    return _claim("run", name).rows(seed=seed)


def _claim(call: str, name: str) -> ModuleType:
    if name not in CLAIMS:
        raise ValueError(f"reproduce.{call}: no claim is called {name!r}. The claims are {', '.join(CLAIMS)}.")
    return CLAIMS[name]
