"""A text falls into the longest words that fit, from left to right."""

from hypothesis import given
from hypothesis import strategies as st

from lavagna.data.trie import Trie

WORDS = st.dictionaries(st.binary(min_size=1, max_size=4) | st.text("ab", min_size=1).map(str.encode), st.integers())


def by_definition(words, data):
    """At each place try every length, the longest first."""
    found, at = [], 0
    while at < len(data):
        fitting = [data[at:end] for end in range(len(data), at, -1) if data[at:end] in words]
        if not fitting:
            break
        found.append(words[fitting[0]])
        at += len(fitting[0])
    return found, at


@given(words=WORDS, data=st.binary() | st.text("abc").map(str.encode))
def test_a_text_falls_into_the_longest_words_that_fit(words, data):
    assert Trie(words.items()).split(data) == by_definition(words, data)


def test_a_word_that_breaks_off_falls_back_to_the_longest_whole_one():
    assert Trie([(b"a", 1), (b"ab", 2), (b"abcde", 3), (b"cd", 4)]).split(b"abcda") == ([2, 4, 1], 5)


def test_the_order_in_which_words_come_changes_nothing():
    words = [(b"ab", 2), (b"a", 1), (b"abc", 3), (b"b", 4)]
    assert Trie(words).split(b"ababcb") == Trie(words[::-1]).split(b"ababcb") == ([2, 3, 4], 6)


def test_nothing_falls_into_nothing():
    assert Trie([(b"a", 1)]).split(b"") == ([], 0)
    assert Trie([]).split(b"a") == ([], 0)
