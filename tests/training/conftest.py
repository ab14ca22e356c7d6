"""A text, a model and settings so small that a run takes a second."""

from pathlib import Path

import pytest

from lavagna.data import Splits, Tokenizer, prepare
from training.program import CONFIG, MODEL


@pytest.fixture(scope="session")
def text_folder(tmp_path_factory) -> Path:
    """A folder with the tokens of a text, for programs that run apart."""
    folder = tmp_path_factory.mktemp("text")
    (folder / "text.txt").write_text("".join(f"{i} times {i} is {i * i}\n" for i in range(600)))
    prepare(folder / "text.txt", Tokenizer.bytes(), folder, validation=0.1)
    return folder


@pytest.fixture(scope="session")
def texts(text_folder) -> Splits:
    """The tokens of that text."""
    return prepare(text_folder / "text.txt", Tokenizer.bytes(), text_folder, validation=0.1)


@pytest.fixture
def model_config():
    """A model of a few thousand parameters."""
    return MODEL


@pytest.fixture
def config():
    """Twelve steps with a checkpoint at each third."""
    return CONFIG
