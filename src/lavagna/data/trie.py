"""A set of byte strings walked byte by byte, which finds the longest one that a text goes on with."""

from collections.abc import Iterable

# Most nodes end a word and lead nowhere; they share this.
_LEAF: dict[int, int] = {}


class Trie:
    """Words, each with a number, as paths from one root: `next[node][byte]` is a node, `number[node]` its word's.

    >>> Trie([(b"a", 1), (b"ab", 2), (b"abcd", 3)]).split(b"abca")
    ([2], 2)
    """

    def __init__(self, words: Iterable[tuple[bytes, int]]) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._number: list[int | None] = [None]
        self._longest = 0
        for word, number in words:
            self._add(word, number)

    def split(self, data: bytes) -> tuple[list[int], int]:
        """The numbers of the words that make up `data`, each the longest that fits, and the bytes that they cover.

        They cover all of it unless no word fits at that place. Time grows with the length of `data`, times the length
        of the longest word at worst.
        """
        following, numbers, longest = self._next, self._number, self._longest
        found: list[int] = []
        start = 0
        while start < len(data):
            node, at, best, end = 0, start, None, start
            for byte in data[start : start + longest]:
                node = following[node].get(byte)
                if node is None:
                    break
                at += 1
                if numbers[node] is not None:
                    best, end = numbers[node], at
            if best is None:
                break
            found.append(best)
            start = end
        return found, start

    def _add(self, word: bytes, number: int) -> None:
        node = 0
        for byte in word:
            child = self._next[node].get(byte)
            if child is None:
                child = len(self._number)
                if self._next[node] is _LEAF:
                    self._next[node] = {}
                self._next[node][byte] = child
                self._next.append(_LEAF)
                self._number.append(None)
            node = child
        self._number[node] = number
        self._longest = max(self._longest, len(word))
