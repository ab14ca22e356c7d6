"""What the tests of checkpoints share: a foreign format of their own, and a folder of ours."""

import pytest

import lavagna as lv
from checkpoints.own_folder import build
from checkpoints.stand_in import StandIn
from lavagna.checkpoints import formats
from lavagna.data import Tokenizer


@pytest.fixture
def stand_in(monkeypatch):
    """The format of `stand_in.py`, known for one test."""
    monkeypatch.setitem(formats.FORMATS, StandIn.name, StandIn)


@pytest.fixture
def folder(tmp_path):
    """A saved model with a tokenizer of bytes."""
    lv.save(build(), tmp_path / "model", Tokenizer.bytes())
    return tmp_path / "model"
