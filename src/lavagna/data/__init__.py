"""From text to batches: tokenizers, sources of text, token files on disk, and batches that are a function of the step.

The way is `documents` (what text there is), `Tokenizer` or `WorldTokenizer` (text to ids), `prepare` (ids on disk,
split in train and validation) and `Batches` (ids to tensors); for sequences with labels, `prepare_examples` and
`ExampleBatches`. Nothing here prints, and nothing here knows a model.
"""

from lavagna.data.abstract_tokenizer import AbstractTokenizer
from lavagna.data.batches import Batches, sequential
from lavagna.data.digit_pictures import digits
from lavagna.data.example_splits import ExampleSplits, open_examples, prepare_examples, read_examples
from lavagna.data.examples import ExampleBatches, Examples, LabeledBatch
from lavagna.data.preparation import prepare
from lavagna.data.source import Document, documents, texts
from lavagna.data.tokenizer import Tokenizer
from lavagna.data.tokenizer_files import TOKENIZER_FILES, load_tokenizer
from lavagna.data.tokens import Splits, TokenFile, open_splits
from lavagna.data.world_tokenizer import WorldTokenizer

__all__ = [
    "TOKENIZER_FILES",
    "AbstractTokenizer",
    "Batches",
    "Document",
    "ExampleBatches",
    "ExampleSplits",
    "Examples",
    "LabeledBatch",
    "Splits",
    "TokenFile",
    "Tokenizer",
    "WorldTokenizer",
    "digits",
    "documents",
    "load_tokenizer",
    "open_examples",
    "open_splits",
    "prepare",
    "prepare_examples",
    "read_examples",
    "sequential",
    "texts",
]
