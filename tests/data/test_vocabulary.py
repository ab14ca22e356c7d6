"""The stand-ins for bytes are those that every byte-level tokenizer uses."""

from tokenizers import pre_tokenizers

from lavagna.data import Tokenizer
from lavagna.data.vocabulary import BYTE_CHARACTERS, encodes_in_pieces


def test_each_byte_stands_for_itself_in_the_library():
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in ("A\0\n \x7f", "éÿ", "\U0010ffff한"):
        ((shown, _),) = level.pre_tokenize_str(text)
        assert shown == "".join(BYTE_CHARACTERS[byte] for byte in text.encode())


def test_the_alphabet_is_the_librarys():
    assert sorted(BYTE_CHARACTERS) == sorted(pre_tokenizers.ByteLevel.alphabet())


def test_a_tokenizer_that_puts_a_space_before_a_text_is_not_given_pieces():
    inner = Tokenizer.bytes()._inner
    assert encodes_in_pieces(inner.to_str())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert not encodes_in_pieces(inner.to_str())
