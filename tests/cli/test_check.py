"""`lavagna check`: rows for every form, and an exit code that tells."""

import pytest

from lavagna import checks
from lavagna.forms import FORMS
from lavagna.layers import layer_class

KEYS = {"layer", "form", "backend", "dtype", "difference", "tolerance", "ok"}


@pytest.mark.parametrize("name", ["gated_delta_net", "softmax_attention"])
def test_every_form_of_a_layer_holds_in_every_precision(table, name):
    rows = table("check", "--layer", name)
    assert set(rows[0]) >= KEYS
    assert {(row["form"], row["dtype"]) for row in rows} == {
        (form, dtype) for form in layer_class(name).forms for dtype in ("float64", "float32")
    }
    assert all(row["ok"] and row["difference"] <= row["tolerance"] for row in rows)


def test_every_transition_is_held_to_its_matrix(table):
    rows = table("check", "--layer", "algebra", "--dtype", "float64")
    assert {row["layer"] for row in rows} == {f"algebra.{name}" for name in checks.TRANSITIONS}
    assert all(row["ok"] for row in rows)


def test_a_form_that_is_wrong_is_found_and_ends_with_1(table, monkeypatch):
    right = FORMS["chunkwise"]

    def wrong(*inputs, **options):
        output, state = right(*inputs, **options)
        return output * (1 + 1e-6), state

    monkeypatch.setitem(FORMS, "chunkwise", wrong)
    rows = table("check", "--layer", "gla", "--dtype", "float64", code=1)
    assert {row["form"] for row in rows if not row["ok"]} == {"chunkwise"}


def test_a_person_gets_one_line_a_form(lavagna):
    done = lavagna("check", "--layer", "retention")
    assert done.code == 0
    assert "hold" in done.out
    assert done.out.count("chunkwise") == 1


@pytest.mark.parametrize("words", [["--layer", "nonsense"], ["--dtype", "float16"]])
def test_an_unknown_layer_or_dtype_is_refused(refused, words):
    assert "Use any of" in refused("check", *words)
