"""What a training needs, whatever is learned."""

from typing import NamedTuple

from lavagna.data import AbstractTokenizer, ExampleSplits, Splits
from lavagna.models import StackConfig
from lavagna.training import TrainConfig


class Task(NamedTuple):
    """All that a training needs; a classifier has no tokenizer."""

    model: StackConfig
    training: TrainConfig
    data: Splits | ExampleSplits
    tokenizer: AbstractTokenizer | None
