"""The tokenizer that lies in a folder, of whatever kind."""

from pathlib import Path

from lavagna.data.abstract_tokenizer import AbstractTokenizer
from lavagna.data.tokenizer import FILE, Tokenizer
from lavagna.data.world_tokenizer import VOCABULARY, WorldTokenizer

TOKENIZER_FILES = frozenset({FILE, VOCABULARY})
"""The names under which tokenizers save themselves into a folder."""

# RWKV-4 was trained with GPT-NeoX's, whose file its authors keep beside the newer vocabulary's.
PILE = "20B_tokenizer.json"


def load_tokenizer(folder: str | Path, *, rows: int | None = None) -> AbstractTokenizer | None:
    """Read the tokenizer.json, rwkv_vocab*.txt or 20B_tokenizer.json of a folder, in that order; None without any.

    Where the last two are both there, a model with fewer `rows` in its embedding than the one has ids takes the other.

    Raises `ValueError` where it cannot be read.
    """
    folder = Path(folder)
    if (folder / FILE).is_file():
        return Tokenizer.load(folder)
    pile = folder / PILE
    if any(folder.glob("rwkv_vocab*.txt")):
        world = WorldTokenizer.load(folder)
        if rows is None or world.vocab_size <= rows or not pile.is_file():
            return world
    return Tokenizer.load(pile) if pile.is_file() else None
