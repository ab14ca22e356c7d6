"""What is printed: tables and JSON."""

import json

from lavagna.cli.console import print_table, print_turned, show

ROWS = [{"what": "a", "size": 12345, "share": 1 / 3, "ok": True}, {"what": "b", "size": 1, "share": 2.0, "ok": False}]


def test_json_is_one_object_with_the_numbers_as_they_are(capsys):
    show("info", {"seed": 0}, ROWS, as_json=True)
    content = json.loads(capsys.readouterr().out)
    assert content["rows"] == ROWS
    assert content["command"] == "info" and content["settings"] == {"seed": 0}


def test_what_json_has_no_number_for_is_null(capsys):
    show("info", {}, [{"difference": float("nan")}, {"difference": float("inf")}], as_json=True)
    assert json.loads(capsys.readouterr().out)["rows"] == [{"difference": None}] * 2


def test_a_table_in_a_file_is_not_cut(capsys):
    print_table([{"what": "x" * 120, "size": 12345}])
    assert "x" * 120 in capsys.readouterr().out


def test_numbers_are_printed_to_be_read(capsys):
    print_table(ROWS)
    shown = capsys.readouterr().out
    assert "12,345" in shown and "0.3333" in shown and "yes" in shown and "no" in shown


def test_a_cell_without_a_number_is_a_dash_among_numbers(capsys):
    print_table([{"what": "a", "size": None}, {"what": "b", "size": 12345}])
    lines = capsys.readouterr().out.rstrip().splitlines()
    assert lines[-2].split() == ["a", "-"] and len(lines[-2].rstrip()) == len(lines[-1].rstrip())


def test_a_narrow_terminal_folds_words_and_no_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    print_table([{"what_it_is": "some words that take much room", "float64_output": 1.234e-16, "size": 1234567}])
    shown = capsys.readouterr().out
    assert "1.234e-16" in shown and "1,234,567" in shown
    assert max(map(len, shown.splitlines())) <= 40


def test_a_turned_table_has_a_line_a_key(capsys):
    print_turned([{"name": "gla", "state_bytes": 1234}, {"name": "delta_net", "state_bytes": 5}], "name")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["gla", "delta_net"] in lines and ["state", "bytes", "1,234", "5"] in lines
