"""One line of what was measured on a CPU: a time, beside what it is held against, of something that was right."""

from typing import NamedTuple

from lavagna.bench.clock import Timed


class Row(NamedTuple):
    """A job's time, as a ratio to that of something else measured in the same rounds.

    - name, what, by, threads: of which thing which part was done by whom, on how many threads.
    - rate in `unit`: work over time.
    - against, against_ms, ratio, bound: what it is held against, and the ratio of both times, wanted at most `bound`.
      `holds` says whether it is; None where nothing is wanted.
    - difference, tolerance: from the definition or from another implementation, before anything was timed. Where
      `right` is False nothing was, and the row has no time.
    - runs: that the least time is of.
    """

    section: str
    name: str
    what: str
    by: str
    threads: int
    time_ms: float | None
    rate: float | None
    unit: str | None
    against: str | None
    against_ms: float | None
    ratio: float | None
    bound: float | None
    holds: bool | None
    difference: float | None
    tolerance: float | None
    right: bool
    runs: int
    note: str | None


class Subject(NamedTuple):
    """What a row is about."""

    section: str
    name: str
    what: str
    by: str
    threads: int


class Against(NamedTuple):
    """What a time is held against: its name, its seconds, and how many times it may be taken."""

    name: str
    seconds: float
    bound: float | None = None


class Verdict(NamedTuple):
    """How far an answer is from the right one, and how far it may be."""

    difference: float
    tolerance: float

    @property
    def right(self) -> bool:
        """False for NaN too."""
        return self.difference <= self.tolerance


def measured(
    subject: Subject,
    time: Timed,
    *,
    work: float = 0,
    unit: str | None = None,
    against: Against | None = None,
    verdict: Verdict | None = None,
    note: str | None = None,
) -> Row:
    """The row of a time; `work` over seconds is its rate in `unit`."""
    ratio = None if against is None else time.seconds / against.seconds
    bound = None if against is None else against.bound
    return Row(
        *subject,
        time_ms=1e3 * time.seconds,
        rate=work / time.seconds if work else None,
        unit=unit,
        against=None if against is None else against.name,
        against_ms=None if against is None else 1e3 * against.seconds,
        ratio=ratio,
        bound=bound,
        holds=None if ratio is None or bound is None else ratio <= bound,
        difference=None if verdict is None else verdict.difference,
        tolerance=None if verdict is None else verdict.tolerance,
        right=True,
        runs=time.runs,
        note=note,
    )


def wrong(subject: Subject, verdict: Verdict, of: str) -> Row:
    """The row of what is not timed, because its answer is not that `of` something."""
    return _untimed(subject, f"not timed: its answer is not that of {of}", verdict, right=False)


def absent(subject: Subject, reason: str) -> Row:
    """The row of what could not be tried."""
    return _untimed(subject, reason, None, right=True)


def _untimed(subject: Subject, note: str, verdict: Verdict | None, *, right: bool) -> Row:
    difference, tolerance = (None, None) if verdict is None else verdict
    nothing = dict.fromkeys(("time_ms", "rate", "unit", "against", "against_ms", "ratio", "bound", "holds"))
    return Row(*subject, **nothing, difference=difference, tolerance=tolerance, right=right, runs=0, note=note)
