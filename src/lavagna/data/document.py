"""One text of a source, read in pieces so that its length does not matter."""

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

PIECE = 1 << 16
"""Bytes read at a time."""

# Between a letter or digit and white space: no pre-tokenizer of GPT-2's family lets a token reach over that border or
# looks back across it, so the pieces encode as the whole does.
CUT = re.compile(r"[^\W_](?=[ \n\r\t])")


@dataclass(frozen=True)
class Document:
    """A named text of `size` bytes of UTF-8, opened anew for each reading.

    `whole` is False where `size` cuts the text short; the character at the cut is dropped if it is incomplete.
    """

    name: str
    size: int
    stream: Callable[[], BinaryIO]
    whole: bool = True

    def read(self) -> bytes:
        """All bytes of the text."""
        return "".join(self.pieces()).encode("utf-8")

    def pieces(self, size: int = PIECE) -> Iterator[str]:
        """The text in order, in pieces of about `size` bytes that begin at white space after a word; memory is bounded.

        A text without such places is cut between characters once a piece is four times the size.

        Raises `ValueError` at the first byte that is not UTF-8.
        """
        held = ""
        for text in self._decoded(size):
            held += text
            cut = _last_cut(held)
            if not cut and len(held) >= 4 * size:
                cut = len(held)
            if cut:
                yield held[:cut]
                held = held[cut:]
        if held:
            yield held

    def _decoded(self, size: int) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        done = 0
        try:
            with self.stream() as file:
                while raw := file.read(min(size, self.size - done)):
                    yield decoder.decode(raw)
                    done += len(raw)
            yield decoder.decode(b"", final=self.whole)
        except UnicodeDecodeError:
            raise ValueError(
                f"documents: '{self.name}' is not UTF-8 text near byte {done}. Convert it to UTF-8 or leave it out."
            ) from None


def _last_cut(text: str) -> int:
    # Looking from the end in growing strides: the last cut is nearly always in the last few characters.
    for reach in (256, 4096, len(text)):
        start = max(0, len(text) - reach)
        ends = [match.end() for match in CUT.finditer(text, start)]
        if ends:
            return ends[-1]
    return 0
