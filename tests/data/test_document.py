"""Pieces of a text are the text, and encode as the text does."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavagna.data import Document, Tokenizer

texts = st.text(alphabet="ab9é한 \n\r\t\u3000.,'_!", min_size=1) | st.text()


def document(data: bytes, **options) -> Document:
    return Document("a", options.pop("size", len(data)), lambda: io.BytesIO(data), **options)


@given(text=texts, size=st.integers(1, 9))
def test_the_pieces_make_up_the_text(text, size):
    assert "".join(document(text.encode()).pieces(size)) == text
    assert document(text.encode()).read() == text.encode()


@pytest.fixture(scope="module")
def bpe():
    return Tokenizer.train(["ab ab\n\nab 99 한한 é. a_b 'ab \r\n\t" * 50, "  ab\n  ab,\n" * 50], vocab_size=320)


@given(words=st.lists(st.text(alphabet="ab9é한 \n\r\t\u3000.,'_!", max_size=12), min_size=1), size=st.integers(1, 4))
def test_pieces_cut_at_white_space_encode_as_the_whole(bpe, words, size):
    text = "a \n".join(words)
    pieces = list(document(text.encode()).pieces(size))
    if all(len(piece) < 4 * size for piece in pieces):
        assert [i for piece in pieces for i in bpe.encode(piece)] == bpe.encode(text)


def test_a_text_without_white_space_is_cut_all_the_same():
    pieces = list(document(b"x" * 1000).pieces(4))
    assert max(map(len, pieces)) <= 16 + 4


def test_a_text_cut_in_a_character_drops_that_character():
    assert document("aé".encode(), size=2, whole=False).read() == b"a"


@pytest.mark.parametrize("data", [b"abc\xff", b"abc\xc3"])
def test_what_is_not_utf8_is_refused_with_its_place(data):
    with pytest.raises(ValueError, match="'a' is not UTF-8 text near byte"):
        document(data).read()
