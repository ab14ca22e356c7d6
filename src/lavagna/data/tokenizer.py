"""Text to token ids and back, without losing a byte."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lavagna.atomic_file import atomic_file
from lavagna.data.abstract_tokenizer import AbstractTokenizer, utf8
from lavagna.data.vocabulary import BYTE_CHARACTERS, encodes_in_pieces, end_of_text, tokens_as_bytes

EOS = "<|endoftext|>"
FILE = "tokenizer.json"


class Tokenizer(AbstractTokenizer):
    """A vocabulary of byte strings: text to ids and back.

    `decode(encode(s)) == s` for every text `s` of the two kinds made here:

    - `Tokenizer.bytes()`: 256 tokens, a token a byte, the id is the byte.
    - `Tokenizer.train(texts, vocab_size=...)`: byte-level BPE. Ids below 256 are still the bytes, then come the merges
      in the order they were learned, and last the document border `<|endoftext|>`, whose id is `eos_id`.

    Plain text never encodes to a special token, even where it spells one. `decode` joins the bytes of the tokens and
    reads them as UTF-8 with one replacement mark per maximal bad part; a special token reads as its own name.

    `Tokenizer.load` also reads the tokenizer.json of others. A byte-level one behaves as ours; of any other kind
    (`byte_level` is False) `decode` is the `tokenizers` library's own and `token_bytes` raises.

    The `tokenizers` library encodes on several threads and turns that off by itself in a forked child; set
    TOKENIZERS_PARALLELISM=false before forking to silence its notice. Nothing is set here.

    >>> Tokenizer.bytes().encode("né")
    [110, 195, 169]
    """

    def __init__(self, inner: tokenizers.Tokenizer, *, eos: str | None = None):
        # A file from elsewhere may carry the truncation of some training run, and would drop text in silence.
        inner.no_truncation()
        inner.no_padding()
        inner.encode_special_tokens = True
        self._inner = inner
        self._json = inner.to_str()
        vocab = inner.get_vocab(with_added_tokens=True)
        self.vocab_size = max(vocab.values(), default=-1) + 1
        self.eos_id = vocab.get(eos) if eos is not None else None
        self._bytes = tokens_as_bytes(self._json, vocab)
        self.byte_level = self._bytes is not None
        self.in_pieces = self.byte_level and encodes_in_pieces(self._json)
        self._is_bytes = self._bytes == {byte: bytes([byte]) for byte in range(256)}

    @classmethod
    def bytes(cls) -> "Tokenizer":
        """The vocabulary of the 256 bytes, where an id is its byte; it has no document border."""
        return cls(_byte_level([], regex=False))

    @classmethod
    def train(cls, texts: Iterable[str], *, vocab_size: int) -> "Tokenizer":
        """Learn a byte-level BPE of `vocab_size` tokens, or fewer where the text has no more pairs to merge.

        The same texts give the same tokenizer. Memory grows with the number of distinct words, not with the text.

        Raises `ValueError` where `vocab_size` has no room for the 256 bytes and the document border.
        """
        if vocab_size <= len(BYTE_CHARACTERS):
            raise ValueError(
                f"Tokenizer.train: vocab_size is {vocab_size}, but 256 bytes and {EOS} need at least 257. "
                "Ask for 257 or more, or use Tokenizer.bytes()."
            )
        learner = _byte_level([], regex=True)
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - 1, min_frequency=2, initial_alphabet=list(BYTE_CHARACTERS), show_progress=False
        )
        learner.train_from_iterator([texts] if isinstance(texts, str) else texts, trainer)
        merges = [(left, right) for left, right in json.loads(learner.to_str())["model"]["merges"]]
        inner = _byte_level(merges, regex=True)
        inner.add_special_tokens([EOS])
        return cls(inner, eos=EOS)

    @classmethod
    def load(cls, path: str | Path) -> "Tokenizer":
        """Read a tokenizer.json, or the one in a folder.

        The document border is what a tokenizer_config.json beside it calls `eos_token`, else the first special token
        with a name in use for it.

        Raises `FileNotFoundError` where there is none, `ValueError` where it cannot be read.
        """
        path = Path(path)
        file = path / FILE if path.is_dir() else path
        if not file.is_file():
            raise FileNotFoundError(
                f"Tokenizer.load: there is no tokenizer at '{file}'. Give a tokenizer.json or a folder that holds one."
            )
        try:
            inner = tokenizers.Tokenizer.from_str(file.read_bytes().decode("utf-8"))
        # The library raises a bare Exception for whatever it does not like in the file.
        except Exception as error:
            raise ValueError(
                f"Tokenizer.load: '{file}' is not a tokenizer.json ({str(error).splitlines()[0]}). "
                "Give a file that Tokenizer.save or Hugging Face tokenizers wrote."
            ) from error
        return cls(inner, eos=end_of_text(inner.to_str(), file.with_name("tokenizer_config.json")))

    def save(self, path: str | Path) -> Path:
        """Write the tokenizer whole or not at all, as `path` if that ends in .json, else as tokenizer.json in it."""
        file = Path(path)
        if file.suffix != ".json":
            file = file / FILE
        with atomic_file(file) as out:
            out.write(self._json.encode("utf-8"))
        return file

    def encode(self, text: str) -> list[int]:
        """The ids of a text. Raises `ValueError` for lone surrogates, which no bytes of UTF-8 stand for."""
        encoded = utf8(text)
        if self._is_bytes:
            return list(encoded)
        return self._inner.encode(text, add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """The ids of each text as an array, on all cores and without a Python integer per token."""
        if self._is_bytes:
            for text in texts:
                yield np.frombuffer(text.encode("utf-8"), dtype=np.uint8)
            return
        for encoding in self._inner.encode_batch_fast(list(texts), add_special_tokens=False):
            yield np.asarray(encoding.ids, dtype=np.uint32)

    def decode(self, ids) -> str:
        """The text of a list, array or tensor of ids.

        Raises `ValueError` for an id outside the vocabulary, naming it and the size.
        """
        if self._bytes is None:
            return self._inner.decode(self._checked_ids(ids), skip_special_tokens=False)
        return super().decode(ids)

    @property
    def fingerprint(self) -> str:
        """A hash of all that decides how text is encoded."""
        return hashlib.sha256(f"{self._json} {self.eos_id}".encode()).hexdigest()

    def __reduce__(self):
        eos = None if self.eos_id is None else self._inner.id_to_token(self.eos_id)
        return _rebuilt, (self._json, eos)


def _rebuilt(json_text: str, eos: str | None) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(json_text), eos=eos)


def _byte_level(merges: list[tuple[str, str]], *, regex: bool) -> tokenizers.Tokenizer:
    vocab = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
    for left, right in merges:
        # Two merges may spell the same token; the first one named it.
        vocab.setdefault(left + right, len(vocab))
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    inner.decoder = decoders.ByteLevel()
    return inner
