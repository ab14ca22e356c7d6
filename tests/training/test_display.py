"""What a person sees while a model trains."""

import pytest

from lavagna.training.display import Bar, Lines, open_display

UPDATE = {"loss": 2.5, "bits_per_byte": 3.607, "tokens_per_second": 1234.4}


def test_lines_are_plain_and_hold_step_loss_bits_speed_and_time_left(capsys):
    lines = Lines(10, 0)
    for step in range(1, 11):
        lines.tell({"step": step, **UPDATE})
    lines.close()
    out, err = capsys.readouterr()
    first, last = err.splitlines()
    assert first.startswith("step  1/10  loss 2.5000  3.607 bits/byte  1,234 tokens/s  0:00:0")
    assert last == "step 10/10  loss 2.5000  3.607 bits/byte  1,234 tokens/s  0:00:00 left"
    assert out == ""


def test_each_evaluation_has_a_line(capsys):
    Lines(10, 0).tell({"step": 5, "validation_loss": 2.25, "validation_bits_per_byte": 3.2})
    assert capsys.readouterr().err == "step  5/10  validation loss 2.2500  3.200 bits/byte\n"


def test_a_resumed_run_counts_the_time_left_from_where_it_went_on(capsys):
    lines = Lines(1000, 998)
    lines.tell({"step": 999, **UPDATE})
    assert "0:00:00 left" in capsys.readouterr().err


def test_the_bar_shows_the_same_numbers_in_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    bar = Bar(10_000, 0)
    bar.tell({"step": 5, "validation_loss": 2.25})
    bar.tell({"step": 6, **UPDATE})
    bar.close()
    shown = " ".join(capsys.readouterr().err.split())
    for part in ("6/10000", "loss 2.500", "3.61 bits/byte", "1,234 tok/s", "val 2.250", "-:--:--"):
        assert part in shown


@pytest.mark.parametrize(("terminal", "ci", "kind"), [(True, "", Bar), (True, "1", Lines), (False, "", Lines)])
def test_a_bar_is_for_terminals_that_are_not_ci(monkeypatch, terminal, ci, kind):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setenv("CI", ci)
    display = open_display(10, 0)
    display.close()
    assert type(display) is kind
