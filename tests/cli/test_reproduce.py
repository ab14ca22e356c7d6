"""`lavagna reproduce`."""

import pytest

from lavagna import reproduce
from lavagna.reproduce.row import Row


def test_without_a_claim_all_are_listed(table):
    assert [row["claim"] for row in table("reproduce")] == reproduce.names()


def test_a_claim_is_the_number_that_was_published_beside_ours(table):
    rows = table("reproduce", "forms")
    assert [row["published"] for row in rows] == pytest.approx([row["ours"] for row in rows])
    assert set(rows[0]) == {"claim", "quantity", "published", "ours", "holds"}


def test_a_claim_that_does_not_hold_ends_with_1(table, monkeypatch):
    monkeypatch.setattr("lavagna.reproduce.run", lambda name, *, seed: [Row(name, "x", 1.0, 2.0, False)])
    assert table("reproduce", "forms", code=1)[0]["holds"] is False


def test_all_runs_every_claim(table, monkeypatch):
    monkeypatch.setattr("lavagna.reproduce.run", lambda name, *, seed: [Row(name, "x", 1.0, 1.0, True)])
    assert [row["claim"] for row in table("reproduce", "all")] == reproduce.names()


def test_an_unknown_claim_is_refused_with_the_known_ones(refused):
    assert "recall" in refused("reproduce", "nonsense")
