"""What the tests of checkpoints share: a foreign format of their own."""

import pytest

from checkpoints.stand_in import StandIn
from lavagna.checkpoints import formats


@pytest.fixture
def stand_in(monkeypatch):
    """The format of `stand_in.py`, known for one test."""
    monkeypatch.setitem(formats.FORMATS, StandIn.name, StandIn)
