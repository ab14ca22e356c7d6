"""The claims: all of them hold, and none of them can hold by itself."""

import pytest

from lavagna import reproduce
from lavagna.reproduce import correct, decay, duality, faces, forms, recall, stabilizer
from lavagna.reproduce.row import row

QUICK = [name for name in reproduce.names() if not reproduce.is_slow(name)]


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_number_of_a_claim_comes_out_and_has_a_name_of_its_own(name, seed):
    rows = reproduce.run(name, seed=seed)
    assert rows and all(found.claim == name for found in rows)
    assert not [found for found in rows if not found.holds]
    assert len({found.quantity for found in rows}) == len(rows)


@pytest.mark.parametrize("name", reproduce.names())
def test_a_claim_is_described_in_one_line_with_its_source(name):
    assert "arXiv" in reproduce.describe(name) and "\n" not in reproduce.describe(name)


def test_the_rows_of_a_claim_are_a_function_of_the_seed():
    assert reproduce.run("limits", seed=3) == reproduce.run("limits", seed=3)
    assert reproduce.run("limits", seed=3) != reproduce.run("limits", seed=4)


@pytest.mark.parametrize("call", [reproduce.run, reproduce.describe, reproduce.is_slow])
def test_an_unknown_claim_names_the_known_ones(call):
    with pytest.raises(ValueError, match="'capacity'.*recall, forms, fade, correct, limits"):
        call("capacity")


@pytest.mark.parametrize(("ours", "holds"), [(0.3449, False), (0.346, True), (0.354, True), (0.3551, False)])
def test_a_row_holds_as_far_as_the_printed_number_goes(ours, holds):
    assert row("fade", "left", 0.35, ours, within=0.005).holds is holds


def test_a_row_does_not_hold_for_a_number_that_is_not_one():
    assert not row("fade", "left", 0.35, float("nan"), within=0.005).holds


def test_rules_that_are_exchanged_are_found_out(monkeypatch):
    honest = recall.errors
    other = {"sum": "delta", "delta": "sum"}
    monkeypatch.setattr(recall, "errors", lambda rule, pairs, **options: honest(other[rule], pairs, **options))
    assert not any(found.holds for found in recall.rows())


def test_a_decay_that_is_a_little_off_is_found_out(monkeypatch):
    monkeypatch.setattr(forms, "DECAY", 0.5001)
    assert not any(found.holds for found in forms.rows() if not found.quantity.endswith("after 6 (±1e-12)"))


def test_the_answers_swing_for_ever_only_when_the_key_is_too_long():
    unit = correct.answers(7.0, 10.0, 1.0, steps=50)
    long = correct.answers(7.0, 10.0, 1.0, key=correct.LONG, steps=50)
    assert unit.allclose(unit.new_tensor(10.0), rtol=0, atol=1e-12)
    assert long.allclose(long.new_tensor([13.0, 7.0]).repeat(25), rtol=0, atol=1e-12)


def test_a_tub_that_loses_a_little_more_is_found_out(monkeypatch):
    monkeypatch.setattr(faces, "KEPT", 0.4999)
    assert not any(
        found.holds for found in faces.rows() if "tub" in found.quantity and "minute 1" not in found.quantity
    )
    assert not any(found.holds for found in decay.rows() if "lag" in found.quantity and "lag 0" not in found.quantity)


def test_faces_that_differ_are_found_out(monkeypatch):
    honest = faces.System.convolve
    monkeypatch.setattr(faces.System, "convolve", lambda self, u, *state: honest(self, u, *state) * (1 + 1e-9))
    assert not any(found.holds for found in faces.rows() if "step by step" not in found.quantity)


def test_a_mask_that_forgets_one_decay_is_found_out(monkeypatch):
    honest = duality.mask
    monkeypatch.setattr(duality, "mask", lambda log_decay: honest(log_decay.roll(1)))
    assert not any(found.holds for found in duality.rows() if "random" in found.quantity)
    assert not any(found.holds for found in duality.rows() if "mask: read 3" in found.quantity)


def test_a_floor_that_is_not_rescaled_is_found_out(monkeypatch):
    honest = stabilizer.read
    monkeypatch.setattr(stabilizer, "read", lambda *x, floor="", **options: honest(*x, floor="left", **options))
    wrong = [found for found in stabilizer.rows() if not found.holds]
    assert any("floor rescaled" in found.quantity for found in wrong) and any("plain" in x.quantity for x in wrong)
