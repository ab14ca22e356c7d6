"""Each line of a .jsonl file is a document."""

import json

import pytest

from lavagna.data.json_lines import json_lines


def read(tmp_path, content: bytes):
    (tmp_path / "x.jsonl").write_bytes(content)
    return [(document.name, document.read().decode()) for document in json_lines("x.jsonl", tmp_path / "x.jsonl")]


def test_every_line_is_a_document_with_its_number(tmp_path):
    lines = [{"text": "é\r\n한"}, {"text": "", "id": 1}, {"id": 2, "text": "b"}]
    content = b"\xef\xbb\xbf" + b"\r\n".join(json.dumps(line).encode() for line in lines) + b"\n\n"
    assert read(tmp_path, content) == [("x.jsonl:1", "é\r\n한"), ("x.jsonl:3", "b")]


def test_lone_surrogates_become_replacement_marks_and_pairs_characters(tmp_path):
    assert read(tmp_path, b'{"text": "a\\ud800b\\ud83d\\ude00"}') == [("x.jsonl:1", "a\ufffdb😀")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{not json", "x.jsonl:2 is not JSON"),
        (b"\xff", "x.jsonl:2 is not JSON"),
        (b"[1]", "x.jsonl:2 has a list"),
        (b'{"content": "a"}', r"x.jsonl:2 has keys \['content'\]"),
        (b'{"text": 3}', r"x.jsonl:2 has keys \['text'\]"),
    ],
)
def test_a_line_without_text_is_named(tmp_path, line, message):
    with pytest.raises(ValueError, match=message):
        read(tmp_path, b'{"text": "fine"}\n' + line)
