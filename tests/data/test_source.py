"""A file, a folder or the standard library gives its text byte for byte, and says what is wrong otherwise."""

import os
import random

import pytest

from lavagna.data import documents, texts
from lavagna.data.source import list_files


def read(source, **options):
    return [(document.name, document.read()) for document in documents(source, **options)]


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "a folder é"
    (root / "sub").mkdir(parents=True)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("hidden")
    (root / "b.txt").write_bytes("è\r\n".encode())
    (root / "sub" / "a.md").write_bytes(b"\xef\xbb\xbfwith a mark")
    (root / "a.jsonl").write_bytes(b'{"text": "one"}\n{"text": "two"}\n')
    (root / "empty.txt").touch()
    (root / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (root / "latin.txt").write_bytes(b"caff\xe8 latte")
    return root


def test_a_folder_gives_its_text_files_sorted_and_whole(folder):
    assert read(folder) == [
        ("a.jsonl:1", b"one"),
        ("a.jsonl:2", b"two"),
        ("b.txt", "è\r\n".encode()),
        ("sub/a.md", b"with a mark"),
    ]


def test_runs_and_checkpoints_of_ours_in_a_folder_are_passed_over(folder):
    before = read(folder)
    for name, format in {"runs/first": "lavagna-run-1", "sub/model": "lavagna-model-1"}.items():
        (folder / name / "below").mkdir(parents=True)
        (folder / name / "config.json").write_text(f'{{"format": "{format}"}}')
        (folder / name / "log.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
        (folder / name / "below" / "more.txt").write_text("more")
    assert read(folder) == before
    with pytest.raises(ValueError, match="no text.*own runs and checkpoints don't count"):
        read(folder / "runs")


@pytest.mark.parametrize("config", ["{}", "[1]", "[" * 100_000, '{"format": 3}', "\xff"])
def test_a_configuration_of_anybody_else_is_text_like_any(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    assert [name for name, _ in read(tmp_path)] == ["config.json"]


def test_binary_files_of_a_folder_are_counted(folder):
    assert list_files(folder).skipped == 2


def test_a_file_is_one_document_with_crlf_kept_and_the_byte_order_mark_dropped(tmp_path):
    path = tmp_path / "un file é.txt"
    path.write_bytes("\ufeffé한\r\n\ufeff".encode())
    assert read(path) == [("un file é.txt", "é한\r\n\ufeff".encode())]


def test_a_character_across_the_border_of_the_first_look_is_text(tmp_path):
    data = b"x" * ((1 << 16) - 1) + "é".encode()
    (tmp_path / "x").write_bytes(data)
    assert read(tmp_path / "x") == [("x", data)]


def test_bad_bytes_far_into_a_file_are_refused_by_name(tmp_path):
    (tmp_path / "x").write_bytes(b"x" * (1 << 17) + b"\xff")
    with pytest.raises(ValueError, match="'x' is not UTF-8 text near byte 131072"):
        read(tmp_path / "x")


def test_mixed_order_is_a_fixed_order_that_does_not_hang_on_the_other_files(tmp_path):
    for i in range(30):
        (tmp_path / f"{i:02}").write_text(str(i))
    before = [name for name, _ in read(tmp_path, order="mixed")]
    assert sorted(before) == [name for name, _ in read(tmp_path)] != before
    (tmp_path / "29").unlink()
    assert [name for name, _ in read(tmp_path, order="mixed")] == [name for name in before if name != "29"]


def test_a_limit_is_kept_to_the_byte_and_gives_a_beginning(folder):
    whole = b"".join(data for _, data in read(folder, order="mixed"))
    for limit in range(1, len(whole) + 2):
        part = b"".join(data for _, data in read(folder, order="mixed", limit_bytes=limit))
        # The two bytes of è stay together.
        assert whole.startswith(part) and limit - len(part) <= max(1, limit - len(whole))


def test_texts_are_the_documents_in_mixed_order(folder):
    assert "".join(texts(folder)).encode() == b"".join(data for _, data in read(folder, order="mixed"))


def test_the_standard_library_is_always_there_and_the_same():
    found = list_files("stdlib")
    names = [name for name, _ in found.files]
    assert names == sorted(names)
    assert {"argparse.py", "json/decoder.py"} <= set(names)
    assert not [name for name in names if "test" in name.split("/") or "site-packages" in name]
    assert sum(path.stat().st_size for _, path in found.files) > 4_000_000
    assert found == list_files("stdlib")


def test_a_folder_named_like_the_word_is_reached_by_its_path(tmp_path, monkeypatch):
    (tmp_path / "stdlib").mkdir()
    (tmp_path / "stdlib" / "x.txt").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert read("./stdlib") == [("x.txt", b"mine")]


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_refused(tmp_path, content):
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(ValueError, match="file '.*x.txt' is empty"):
        read(tmp_path / "x.txt")


@pytest.mark.parametrize("content", [b"\x89PNG\0", "utf-16".encode("utf-16"), random.Random(0).randbytes(500)])
def test_a_binary_file_is_refused(tmp_path, content):
    (tmp_path / "x.txt").write_bytes(content)
    with pytest.raises(ValueError, match="file '.*x.txt' is binary, or text in another encoding"):
        read(tmp_path / "x.txt")


def test_a_missing_path_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="'.*nowhere' does not exist.*the word stdlib"):
        read(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="neither a file nor a folder"):
        read(tmp_path / "pipe")
    with pytest.raises(ValueError, match="has no text: of 0 files"):
        read(tmp_path)


def test_a_folder_without_text_is_refused(tmp_path):
    (tmp_path / "x.png").write_bytes(b"\0")
    (tmp_path / "y.txt").touch()
    with pytest.raises(ValueError, match="has no text: of 2 files 1 are binary"):
        read(tmp_path)


def test_options_that_make_no_sense_are_refused(folder):
    with pytest.raises(ValueError, match="limit_bytes is 0"):
        read(folder, limit_bytes=0)
    with pytest.raises(ValueError, match="order is 'random'"):
        read(folder, order="random")
