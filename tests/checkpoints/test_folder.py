"""A folder is replaced whole or not at all, and nobody's files are lost."""

import os
import time

import pytest

from lavagna.checkpoints import folder
from lavagna.checkpoints.folder import whole_folder

FILES = frozenset({"a", "b"})


def write(path, text, names=("a", "b")):
    with whole_folder(path, files=FILES) as new:
        for name in names:
            (new / name).write_text(text)


def content(path):
    return {file.name: file.read_text() for file in path.iterdir()}


@pytest.fixture(params=["exchange", "two renames"])
def system(request, monkeypatch):
    """Both kinds of system: with a call that exchanges two names, and without."""
    if request.param == "two renames":
        monkeypatch.setattr(folder, "_exchanged", lambda one, other: False)


@pytest.mark.usefixtures("system")
def test_a_folder_is_replaced_and_nothing_else_stays_behind(tmp_path):
    write(tmp_path / "x", "old")
    write(tmp_path / "x", "new", names=["a"])
    assert content(tmp_path / "x") == {"a": "new"}
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.usefixtures("system")
def test_files_of_others_move_along(tmp_path):
    write(tmp_path / "x", "old")
    (tmp_path / "x" / "notes").write_text("mine")
    write(tmp_path / "x", "new")
    assert content(tmp_path / "x") == {"a": "new", "b": "new", "notes": "mine"}
    assert os.listdir(tmp_path) == ["x"]


def test_an_exception_leaves_the_old_folder_and_no_other(tmp_path):
    write(tmp_path / "x", "old")
    with pytest.raises(KeyboardInterrupt), whole_folder(tmp_path / "x", files=FILES) as new:
        (new / "a").write_text("new")
        raise KeyboardInterrupt
    assert content(tmp_path / "x") == {"a": "old", "b": "old"}
    assert os.listdir(tmp_path) == ["x"]


def test_what_a_killed_writer_left_goes_after_ten_minutes_but_for_files_of_others(tmp_path):
    long_ago = time.time() - 3600
    for name, file in (("1", "a"), ("2", "notes")):
        left = tmp_path / f".x.{name}.partial"
        left.mkdir()
        (left / file).write_text("old")
        os.utime(left, (long_ago, long_ago))
    (tmp_path / ".x.3.partial").mkdir()
    write(tmp_path / "x", "new")
    assert sorted(os.listdir(tmp_path)) == [".x.2.partial", ".x.3.partial", "x"]


def test_a_file_of_that_name_stays(tmp_path):
    (tmp_path / "x").write_text("a file")
    with pytest.raises(NotADirectoryError, match="is a file. Give the name of a folder[.]$"):
        write(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text() == "a file"


def test_the_folder_one_works_in_is_not_taken_away(tmp_path, monkeypatch):
    (tmp_path / "x" / "below").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "x" / "below")
    with pytest.raises(OSError, match="the folder this process works in"):
        write(tmp_path / "x", "new")


def test_a_link_keeps_pointing_at_the_folder(tmp_path):
    write(tmp_path / "x", "old")
    (tmp_path / "link").symlink_to("x")
    write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and content(tmp_path / "x")["a"] == "new"


@pytest.mark.parametrize("within", ["", "below"])
def test_a_link_to_itself_is_refused_and_stays(tmp_path, within):
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    with pytest.raises(OSError, match="is a link that leads back to itself"):
        write(tmp_path / "one" / within, "new")
    assert sorted(os.listdir(tmp_path)) == ["one", "two"]
