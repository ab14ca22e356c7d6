"""Text from ids that come one at a time: whole characters only, and none from a stop string on."""

import codecs
from collections.abc import Sequence


class ByteReader:
    """For byte-level vocabularies: a token may begin, continue or end a character of UTF-8."""

    def __init__(self, tokenizer) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id: int) -> str:
        """The characters that this id completes."""
        return self._decoder.decode(self._bytes_of(id))

    def finish(self) -> str:
        """What is left where a character broke off, as replacement marks."""
        return self._decoder.decode(b"", final=True)


class DecodeReader:
    """For tokenizers that only decode lists: what a token adds shows beside the ones before it."""

    MARK = "\ufffd"

    def __init__(self, tokenizer, before: list[int]) -> None:
        self._decode = tokenizer.decode
        # The ids whose text is out already but shapes what follows, as spaces do, and the ids whose text is not.
        self._context = before
        self._waiting: list[int] = []

    def push(self, id: int) -> str:
        """The characters that this id completes."""
        self._waiting.append(id)
        new = self._new()
        # A mark at the end may be the first part of a character.
        return "" if new.endswith(self.MARK) else self._emit(new)

    def finish(self) -> str:
        """What is left where a character broke off, as replacement marks."""
        return self._emit(self._new())

    def _new(self) -> str:
        return self._decode(self._context + self._waiting)[len(self._decode(self._context)) :]

    def _emit(self, new: str) -> str:
        self._context, self._waiting = self._waiting, []
        return new


Reader = ByteReader | DecodeReader


def reader(tokenizer, before: list[int]) -> Reader:
    """The reader for a tokenizer: by its bytes where it is `byte_level`, else by `decode`, after the ids `before`."""
    return ByteReader(tokenizer) if getattr(tokenizer, "byte_level", False) else DecodeReader(tokenizer, before)


class Stop:
    """Lets text through up to the first stop string, holding back what may be the beginning of one."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = strings
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """What may be shown now that `text` has come."""
        self._held += text
        starts = [place for string in self._strings if (place := self._held.find(string)) >= 0]
        if starts:
            self.found = True
            shown, self._held = self._held[: min(starts)], ""
        else:
            keep = max((self._overlap(string) for string in self._strings), default=0)
            cut = len(self._held) - keep
            shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        return self._held

    def _overlap(self, string: str) -> int:
        """How many of the last characters held are the first ones of a stop string."""
        longest = min(len(string) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if self._held.endswith(string[:n])), 0)
