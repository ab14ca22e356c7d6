"""The learning rate as a function of the step."""

import math

import pytest

from lavagna.training import learning_rate
from lavagna.training.schedule import SCHEDULES


def rates(schedule: str, **options) -> list[float]:
    settings = {"steps": 100, "lr": 2.0, "min_lr": 0.2, "warmup": 10} | options
    return [learning_rate(step, schedule=schedule, **settings) for step in range(settings["steps"])]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_climbs_in_equal_steps_and_is_full_after_the_warm_up(schedule):
    climbed = rates(schedule)
    assert climbed[10] == 2.0
    assert climbed[:11] == pytest.approx([2.0 * (step + 1) / 11 for step in range(11)])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_after_the_warm_up_the_rate_never_rises_and_stays_within_its_bounds(schedule):
    fallen = rates(schedule)[10:]
    assert all(later <= earlier for earlier, later in zip(fallen, fallen[1:], strict=False))
    assert all(0.2 <= rate <= 2.0 for rate in fallen)


def test_the_cosine_is_half_way_down_in_the_middle_and_symmetric_about_it():
    fallen = rates("cosine")
    assert fallen[55] == pytest.approx((2.0 + 0.2) / 2)
    assert all(fallen[55 - i] + fallen[55 + i] == pytest.approx(2.2) for i in range(45))


def test_wsd_is_full_until_its_last_part_and_falls_there_as_one_minus_a_root():
    fallen = rates("wsd", decay=0.25)
    assert set(fallen[10:76]) == {2.0}
    assert fallen[75:] == pytest.approx([0.2 + 1.8 * (1 - math.sqrt(i / 25)) for i in range(25)])


def test_constant_stays_full():
    assert set(rates("constant")[10:]) == {2.0}


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_beyond_the_last_step_the_rate_is_the_smallest(schedule):
    assert learning_rate(150, schedule=schedule, steps=100, lr=2.0, min_lr=0.2) == pytest.approx(0.2)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_warm_up_longer_than_the_run_never_stops_climbing(schedule):
    climbed = rates(schedule, warmup=200)
    assert all(later > earlier for earlier, later in zip(climbed, climbed[1:], strict=False))


def test_an_unknown_schedule_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'linear', but one of cosine, wsd, constant"):
        learning_rate(0, schedule="linear", steps=10, lr=1.0)
