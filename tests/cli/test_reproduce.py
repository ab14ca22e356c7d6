"""`lavagna reproduce`."""

import pytest

from lavagna import reproduce
from lavagna.reproduce.row import Row


@pytest.fixture
def one_is_slow(monkeypatch):
    """The claim `limits` takes minutes; running one takes nothing and gives a row that holds."""
    monkeypatch.setattr("lavagna.reproduce.is_slow", lambda name: name == "limits")
    monkeypatch.setattr("lavagna.reproduce.run", lambda name, *, seed: [Row(name, "x", 1.0, 1.0, True)])


def test_without_a_claim_all_are_listed_with_what_they_take(table, one_is_slow):
    rows = table("reproduce")
    assert [row["claim"] for row in rows] == reproduce.names()
    assert [row["claim"] for row in rows if row["takes"] == "minutes"] == ["limits"]


def test_a_claim_is_the_number_that_was_published_beside_ours(table):
    rows = table("reproduce", "forms")
    assert [row["published"] for row in rows] == pytest.approx([row["ours"] for row in rows])
    assert set(rows[0]) == {"claim", "quantity", "published", "ours", "holds"}


def test_a_claim_that_does_not_hold_ends_with_1(table, monkeypatch):
    monkeypatch.setattr("lavagna.reproduce.run", lambda name, *, seed: [Row(name, "x", 1.0, 2.0, False)])
    assert table("reproduce", "forms", code=1)[0]["holds"] is False


def test_all_runs_every_quick_claim_and_says_which_it_left_out_and_how_to_run_them(lavagna, table, one_is_slow):
    assert [row["claim"] for row in table("reproduce", "all")] == [n for n in reproduce.names() if n != "limits"]
    assert "lavagna reproduce limits" in lavagna("reproduce", "all").out


def test_a_slow_claim_runs_by_its_name(lavagna, table, one_is_slow):
    assert [row["claim"] for row in table("reproduce", "limits")] == ["limits"]
    assert [row["claim"] for row in table("reproduce", "all", "limits")] == reproduce.names()
    assert "Left out" not in lavagna("reproduce", "all", "limits").out


def test_an_unknown_claim_is_refused_with_the_known_ones(refused):
    assert "recall" in refused("reproduce", "nonsense")
