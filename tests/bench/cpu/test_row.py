"""One line of what was measured."""

import pytest

from lavagna.bench.clock import Timed, least
from lavagna.bench.cpu.row import Against, Subject, Verdict, absent, measured, wrong

SUBJECT = Subject("scan", "something", "forward", "lavagna", 2)


def test_a_row_tells_rate_and_ratio():
    row = measured(SUBJECT, Timed(0.5, 3), work=4.0, unit="GB/s", against=Against("a copy", 0.25, 2.0))
    assert (row.time_ms, row.rate, row.unit, row.against_ms, row.ratio, row.runs) == (500, 8, "GB/s", 250, 2, 3)
    assert row.holds is True and row.right


def test_a_row_beyond_its_bound_does_not_hold_and_is_right():
    row = measured(SUBJECT, Timed(0.5, 3), against=Against("a copy", 0.25, 1.9))
    assert row.holds is False and row.right


@pytest.mark.parametrize("against", [None, Against("a copy", 0.25)])
def test_what_is_not_bounded_neither_holds_nor_fails(against):
    assert measured(SUBJECT, Timed(0.5, 3), against=against).holds is None


@pytest.mark.parametrize("difference", [2e-5, float("nan"), float("inf")])
def test_a_wrong_answer_has_no_time(difference):
    verdict = Verdict(difference, 1e-5)
    row = wrong(SUBJECT, verdict, "the definition")
    assert not verdict.right and not row.right and row.holds is None and row.time_ms is None
    assert "the definition" in (row.note or "")


def test_what_is_not_there_is_not_wrong():
    row = absent(SUBJECT, "rwkv is not installed")
    assert row.right and row.holds is None and row.time_ms is None and row.note == "rwkv is not installed"


def test_a_slow_job_runs_once_and_others_go_on():
    runs = {"slow": 0, "fast": 0}

    def job(name, size):
        runs[name] += 1
        return sum(range(size))

    found = least({"slow": lambda: job("slow", 200_000), "fast": lambda: job("fast", 1)}, rounds=3, patience=1e-4)
    assert runs == {"slow": 1, "fast": 4}
    assert (found["slow"].runs, found["fast"].runs) == (1, 3)
