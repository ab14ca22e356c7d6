"""The tokenizer that lies in a folder, of whatever kind."""

from pathlib import Path

from lavagna.data.abstract_tokenizer import AbstractTokenizer
from lavagna.data.tokenizer import FILE, Tokenizer
from lavagna.data.world_tokenizer import VOCABULARY, WorldTokenizer

TOKENIZER_FILES = frozenset({FILE, VOCABULARY})
"""The names under which tokenizers save themselves into a folder."""


def load_tokenizer(folder: str | Path) -> AbstractTokenizer | None:
    """Read the tokenizer.json or else the rwkv_vocab*.txt of a folder; None where it has neither.

    Raises `ValueError` where it cannot be read.
    """
    folder = Path(folder)
    if (folder / FILE).is_file():
        return Tokenizer.load(folder)
    if any(folder.glob("rwkv_vocab*.txt")):
        return WorldTokenizer.load(folder)
    return None
