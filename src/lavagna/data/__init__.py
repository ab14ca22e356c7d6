"""From text to batches: tokenizers, sources of text, token files on disk, and batches that are a function of the step.

The way is `documents` (what text there is), `Tokenizer` (text to ids), `prepare` (ids on disk, split in train and
validation) and `Batches` (ids to tensors). Nothing here prints, and nothing here knows a model.
"""

from lavagna.data.batches import Batches, sequential
from lavagna.data.preparation import prepare
from lavagna.data.source import Document, documents, texts
from lavagna.data.tokenizer import Tokenizer
from lavagna.data.tokens import Splits, TokenFile, open_splits

__all__ = [
    "Batches",
    "Document",
    "Splits",
    "TokenFile",
    "Tokenizer",
    "documents",
    "open_splits",
    "prepare",
    "sequential",
    "texts",
]
