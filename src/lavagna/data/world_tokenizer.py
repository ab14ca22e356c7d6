"""RWKV's "world" vocabulary: the longest token that fits, byte by byte."""

import ast
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from lavagna.atomic_file import atomic_file
from lavagna.data.abstract_tokenizer import AbstractTokenizer, utf8
from lavagna.data.document import CUT
from lavagna.data.trie import Trie

VOCABULARY = "rwkv_vocab.txt"
EOS_ID, EOS = 0, b"<|endoftext|>"


class WorldTokenizer(AbstractTokenizer):
    """The tokenizer of RWKV's World models, all since version 5: at each place of a text the longest token that fits.

    `tokens` are the byte strings by id, from 1 on; id 0 is the document border, which no text encodes to and which
    reads as `<|endoftext|>`. A vocabulary that has all 256 bytes, as the published one does, encodes every text, and
    `decode(encode(s)) == s`. Encoding takes about half a second a megabyte.

    >>> WorldTokenizer({1: b"a", 2: b"b", 3: b"ab"}).encode("aab")
    [1, 3]
    """

    def __init__(self, tokens: Mapping[int, bytes]) -> None:
        _refuse(tokens)
        self._tokens = dict(sorted(tokens.items()))
        self._bytes = {EOS_ID: EOS} | self._tokens
        self.vocab_size = max(self._bytes) + 1
        self.eos_id = EOS_ID
        self.byte_level = True
        self.in_pieces = not any(map(_reaches_over_a_cut, tokens.values()))

    @classmethod
    def load(cls, path: str | Path) -> "WorldTokenizer":
        """Read a vocabulary in the published form, or the one in a folder, there named `rwkv_vocab*.txt`.

        A line is `id token length`: the token as a Python literal, a str or bytes, and how many bytes it has in UTF-8.
        Lines may end in LF or CRLF, in any order; a byte order mark is left out.

        Raises `FileNotFoundError` where there is none, `ValueError` where a folder has several, and where a line is
        broken or repeats an id or a token, naming the line.
        """
        file = _only_file(Path(path))
        try:
            lines = file.read_bytes().decode("utf-8-sig").rstrip("\r\n").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"WorldTokenizer.load: '{file}' is not UTF-8 near byte {error.start}.") from None
        tokens: dict[int, bytes] = {}
        seen: dict[bytes, int] = {}
        for place, line in enumerate(lines, 1):
            try:
                id, token = _parsed(line.removesuffix("\r"))
                if id in tokens:
                    raise ValueError(f"id {id} was already given.")
                if token in seen:
                    raise ValueError(f"{token!r} is already id {seen[token]}.")
            except ValueError as error:
                raise ValueError(
                    f"WorldTokenizer.load: '{file}', line {place}, {_shortened(line)}: {error} "
                    "Give a vocabulary as RWKV publishes it, a line each: id, token as a Python literal, bytes in it."
                ) from None
            tokens[id] = token
            seen[token] = id
        return cls(tokens)

    def save(self, path: str | Path) -> Path:
        """Write the vocabulary in the published form, as `path` if that ends in .txt, else as rwkv_vocab.txt in it."""
        file = Path(path)
        if file.suffix != ".txt":
            file = file / VOCABULARY
        with atomic_file(file) as out:
            for id, token in self._tokens.items():
                out.write(f"{id} {_literal(token)} {len(token)}\n".encode())
        return file

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Raises `ValueError` for lone surrogates and at a byte that no token begins with."""
        data = utf8(text)
        ids, end = self._trie.split(data)
        if end < len(data):
            raise ValueError(
                f"encode: no token fits at byte {end} of the text, {data[end : end + 8]!r}, because the vocabulary "
                f"lacks the byte {data[end]:#04x}. Use one that has all 256 bytes, as the published one does."
            )
        return ids

    def encode_many(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """The ids of each text as an array."""
        for text in texts:
            yield np.asarray(self.encode(text), dtype=np.uint32)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of all that decides how text is encoded."""
        digest = hashlib.sha256(b"world")
        for id, token in self._tokens.items():
            digest.update(f" {id} {len(token)} ".encode() + token)
        return digest.hexdigest()

    @cached_property
    def _trie(self) -> Trie:
        return Trie((token, id) for id, token in self._tokens.items())

    def __reduce__(self):
        return WorldTokenizer, (self._tokens,)


def _only_file(path: Path) -> Path:
    found = sorted(path.glob("rwkv_vocab*.txt")) if path.is_dir() else [path]
    # The same file under an older and a newer name is no choice to make.
    if len({file.read_bytes().replace(b"\r\n", b"\n") for file in found[1:] and found}) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"WorldTokenizer.load: '{path}' has several vocabularies: {names}. Give one of them.")
    if not found or not found[0].is_file():
        raise FileNotFoundError(
            f"WorldTokenizer.load: there is no vocabulary at '{path}'. Give a file such as rwkv_vocab_v20230424.txt "
            "or a folder that holds one."
        )
    return found[0]


def _parsed(line: str) -> tuple[int, bytes]:
    """The id and the token of a line. Raises `ValueError` that says what is wrong with it."""
    id, _, rest = line.partition(" ")
    literal, _, length = rest.rpartition(" ")
    if not (id.isascii() and id.isdecimal() and length.isascii() and length.isdecimal()):
        raise ValueError("it is not an id, a token and a length, with a space between them.")
    token = _value(literal)
    if len(token) != int(length):
        raise ValueError(f"the token has {len(token)} bytes, but {length} are said.")
    if int(id) == EOS_ID:
        raise ValueError(f"id {EOS_ID} is the end of a document and has no token.")
    if not token:
        raise ValueError("the token is empty.")
    return int(id), token


def _value(literal: str) -> bytes:
    # Most need no parser, and a parser takes most of the time of reading a vocabulary.
    plain = len(literal) > 1 and literal[0] in "'\"" and literal[0] == literal[-1]
    if plain and "\\" not in literal and literal[0] not in literal[1:-1]:
        return literal[1:-1].encode("utf-8")
    try:
        value = ast.literal_eval(literal)
        token = value.encode("utf-8") if isinstance(value, str) else value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        token = None
    if not isinstance(token, bytes):
        raise ValueError(f"{_shortened(literal)} is not a str or bytes as Python writes them.")
    return token


def _literal(token: bytes) -> str:
    """A token as the published file spells it: a str where its bytes are whole characters."""
    try:
        return repr(token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(token)


def _reaches_over_a_cut(token: bytes) -> bool:
    """Whether a token may cover both sides of a place where `Document.pieces` cuts: a letter, then white space."""
    # A token may begin inside a character, and that may be a letter.
    return CUT.search(token.decode("utf-8", "replace").replace("\ufffd", "a")) is not None


def _shortened(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _refuse(tokens: Mapping[int, bytes]) -> None:
    """Raise `ValueError` where tokens by id are no vocabulary."""
    wrong = [id for id, token in tokens.items() if id < 1 or not token]
    if wrong or not tokens or len(set(tokens.values())) < len(tokens):
        reason = f"id {wrong[0]} with {tokens[wrong[0]]!r}" if wrong else "one token twice" if tokens else "nothing"
        raise ValueError(
            f"WorldTokenizer: the vocabulary holds {reason}. Give ids from 1 on, each with a token of its own of one "
            "byte or more; 0 is the end of a document."
        )
