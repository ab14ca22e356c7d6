"""What is printed: tables and JSON."""

import json

from lavagna.cli.console import print_table, show

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
