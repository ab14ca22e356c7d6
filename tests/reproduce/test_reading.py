"""The claims on digits: what they measure, and that a difference that isn't there doesn't hold."""

import pytest
import torch

from lavagna.data import read_examples
from lavagna.reproduce import discretization, hippo_init
from lavagna.reproduce.reading import percent_right

pytest.importorskip("sklearn", reason="scikit-learn, the extra 'digits', is not installed")
TINY = {"steps": 2, "batch": 4, "d_state": 4, "width": 16}


@pytest.fixture
def read(monkeypatch):
    """Let every training end with the number that a function of its options gives."""

    def by(function) -> None:
        for claim in (hippo_init, discretization):
            monkeypatch.setattr(claim, "percent_right", lambda layer, options, data, **sizes: function(options))

    return by


def test_a_short_training_is_a_function_of_its_seed_and_leaves_the_callers_random_numbers_alone(device):
    data = read_examples("digits")

    def right(seed: int) -> float:
        sizes = {"steps": 3, "batch": 4, "width": 16, "device": str(device)}
        return percent_right("s4d", {"d_state": 4}, data, seed=seed, **sizes)

    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    found = [right(0), right(0), right(1)]
    assert torch.equal(torch.rand(3), expected)
    assert found[0] == found[1] != found[2] and min(found) >= 0


def test_a_training_that_ends_in_no_number_is_none():
    grows = {"d_state": 16, "discretization": "euler", "dt_min": 0.1, "dt_max": 0.2}
    found = percent_right("s4d", grows, read_examples("digits"), steps=2, batch=4, seed=0, width=16)
    assert found != found


def test_hippo_and_random_matrices_are_read_with_the_same_budget_and_two_updates_show_nothing():
    rows = hippo_init.rows(side=8, **TINY)
    assert len({row.quantity for row in rows}) == 3 and all(0 <= row.ours <= 100 for row in rows[:2])
    assert rows[2].ours == pytest.approx(rows[0].ours - rows[1].ours) and not any(row.holds for row in rows)


@pytest.mark.parametrize("legs, random, holds", [(95.0, 37.0, True), (37.0, 95.0, False), (50.0, 45.0, False)])
def test_hippo_must_be_better_than_random_by_more_than_chance(read, legs, random, holds):
    read(lambda options: {"legs": legs, "random": random}[options["init"]])
    assert [row.holds for row in hippo_init.rows(side=8)] == [holds] * 3


def test_every_rule_is_compared_for_every_spectrum_by_real_trainings():
    rows = discretization.rows(seeds=1, inits=("legs", "real"), **TINY)
    assert [row.quantity.split(",")[0] for row in rows[:-1]] == ["legs", "real", "real", "legs"]
    assert all(row.ours == row.ours and abs(row.ours) <= 100 for row in rows)


@pytest.mark.parametrize(
    "worse, failing",
    [
        ({}, []),
        ({"discretization": "bilinear"}, [0, 1, 2, 3]),
        ({"discretization": "euler"}, [4, 5]),
        ({"init": "lin", "discretization": "bilinear"}, [2]),
    ],
    ids=str,
)
def test_a_rule_that_is_worse_than_another_is_found_out(read, worse, failing):
    spectra = {"legs": 95.0, "inv": 93.0, "lin": 94.0, "real": 60.0}
    read(lambda given: spectra[given["init"]] - (6.0 if worse and worse.items() <= given.items() else 0.0))
    rows = discretization.rows()
    assert [index for index, row in enumerate(rows) if not row.holds] == failing


def test_spectra_that_make_no_more_difference_than_rules_are_found_out(read):
    read(lambda options: 90.0 + (options["discretization"] == "zoh"))
    assert not discretization.rows()[-1].holds
