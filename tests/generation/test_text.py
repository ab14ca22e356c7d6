"""Text comes in whole characters and ends where a stop string begins."""

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavagna.data import Tokenizer
from lavagna.generation.text import DecodeReader, Stop, reader

BYTES = Tokenizer.bytes()
KOREAN, FAMILY = "안녕하세요", "👨\u200d👩\u200d👧"
ODD = [
    KOREAN.encode(),
    FAMILY.encode(),
    b"\x80",
    b"a\x80b",
    b"\xff\xfe",
    KOREAN.encode()[:-1],
    b"\xf0\x9f\x91",
    b"\xf0\x9fA\xe2\x82",
    b"\xed\xa0\x80",
    "\ufffd\ufffd".encode(),
    b"a\r\n\0 b ",
]
READERS = [lambda: reader(BYTES, []), lambda: DecodeReader(BYTES, [65, 66])]


def read(data, one):
    return [one.push(id) for id in data], one.finish()


@pytest.mark.parametrize("make", READERS, ids=["bytes", "decode"])
@pytest.mark.parametrize("data", ODD, ids=repr)
def test_pieces_together_are_the_text_of_all_ids(make, data):
    pieces, tail = read(data, make())
    assert "".join(pieces) + tail == data.decode("utf-8", "replace") == BYTES.decode(list(data))


@given(st.binary(max_size=30))
def test_pieces_of_any_bytes_together_are_their_text(data):
    for make in READERS:
        pieces, tail = read(data, make())
        assert "".join(pieces) + tail == data.decode("utf-8", "replace")


@pytest.mark.parametrize("make", READERS, ids=["bytes", "decode"])
@pytest.mark.parametrize("text", [KOREAN, FAMILY, "né 안 x"])
def test_a_character_comes_with_its_last_byte_and_not_before(make, text):
    pieces, tail = read(text.encode(), make())
    assert tail == ""
    assert [piece for piece in pieces if piece] == list(text)
    decoder = codecs.getincrementaldecoder("utf-8")()
    assert pieces == [decoder.decode(bytes([byte])) for byte in text.encode()]


def test_a_tokenizer_that_drops_the_first_space_keeps_it_after_a_prompt():
    class Words:
        def decode(self, ids):
            return "".join([" cat", " dog"][id] for id in ids).lstrip()

    one = reader(Words(), before=[0])
    assert [one.push(1), one.push(0)] == [" dog", " cat"]


@given(text=st.text("ab\n", max_size=12), cuts=st.lists(st.integers(1, 4), min_size=12, max_size=12), data=st.data())
def test_text_ends_before_the_first_stop_string_however_it_is_cut(text, cuts, data):
    strings = data.draw(st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3))
    stop, shown, rest = Stop(strings), "", text
    for cut in cuts:
        piece, rest = rest[:cut], rest[cut:]
        shown += stop.push(piece)
        if stop.found:
            break
    shown += stop.finish()
    seen = text[: len(text) - len(rest)]
    places = [place for string in strings if (place := seen.find(string)) >= 0]
    assert stop.found == bool(places)
    assert shown == (seen[: min(places)] if places else seen)


def test_only_what_may_begin_a_stop_string_is_held_back():
    stop = Stop(["\n\nUser:"])
    assert stop.push("hello\n") == "hello"
    assert stop.push("\nUs") == ""
    assert stop.push("ually") == "\n\nUsually"
