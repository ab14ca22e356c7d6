"""What the rule of discretization is worth in S4D, and what the spectrum that it starts from."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

from lavagna.data import read_examples
from lavagna.reproduce.reading import WIDTH, percent_right
from lavagna.reproduce.row import Row, unprinted

TITLE = "In S4D the rule of discretization makes no real difference; the spectrum at the start makes one."
SOURCE = "Gu, Gupta, Goel and Ré 2022, arXiv 2206.11893, whose ablations find the rules equal and the spectra not."
SLOW = True

INITS = ("legs", "inv", "lin", "real")
SEEDS = 3
# Means of three runs, of which each is judged by 359 digits: some three standard errors of a difference.
WITHIN = 4.0
# Euler's decay 1 + step A stays below one for steps below 2 |Re A| / |A|^2: of the real spectrum all, of "legs" only
# such small ones.
SMALL = {"dt_min": 1e-4, "dt_max": 2e-3}


def rows(
    *,
    seed: int = 0,
    seeds: int = SEEDS,
    inits: Sequence[str] = INITS,
    steps: int = 200,
    batch: int = 32,
    d_state: int = 16,
    width: int = WIDTH,
) -> list[Row]:
    """Differences between the rules for every spectrum, on digits of 64 pixels, and the range over spectra beside them.

    Each number is a mean over runs with `seeds` seeds from `seed` on. Nothing was published for the digits: what is
    compared is that a difference between rules is 0 as far as chance allows, and that the range over spectra is larger.
    """
    data = read_examples("digits")

    def right(**options: Any) -> float:
        options = {"d_state": d_state, **options}
        return mean(
            percent_right("s4d", options, data, steps=steps, batch=batch, seed=seed + i, width=width)
            for i in range(seeds)
        )

    table = {init: {rule: right(init=init, discretization=rule) for rule in ("zoh", "bilinear")} for init in inits}
    found = [_difference(init, "bilinear", line["bilinear"], line["zoh"]) for init, line in table.items()]
    found.append(_difference("real", "Euler", right(init="real", discretization="euler"), table["real"]["zoh"]))
    euler, zoh = (right(init="legs", discretization=rule, **SMALL) for rule in ("euler", "zoh"))
    found.append(_difference(f"legs, steps below {SMALL['dt_max']:g}", "Euler", euler, zoh))
    over_inits = _range([line["zoh"] for line in table.values()])
    over_rules = max(_range(list(line.values())) for line in table.values())
    name = "range over spectra less the widest over rules (points, above 0)"
    return [*found, Row("discretization", name, None, over_inits - over_rules, over_inits > over_rules)]


def _difference(init: str, rule: str, ours: float, zoh: float) -> Row:
    return unprinted(
        "discretization", f"{init}, {zoh:.1f} % right: {rule} less ZOH (points)", 0.0, ours - zoh, within=WITHIN
    )


def _range(numbers: list[float]) -> float:
    return max(numbers) - min(numbers)
