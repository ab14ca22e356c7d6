"""Packages that lavagna works without."""

import logging
import sys

import pytest

from lavagna.extras import optional, quiet


def test_a_package_that_is_not_there_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ValueError) as caught:
        optional("torchao.quantization", call="quantize", extra="int8", why="torchao rounds the weights")
    assert str(caught.value) == (
        "quantize: torchao rounds the weights. Install it from lavagna's folder: pip install -e '.[int8]'."
    )


def test_a_package_that_is_there_is_returned():
    assert optional("json", call="x", extra="x", why="x") is sys.modules["json"]


def test_loggers_are_quiet_inside_and_as_they_were_outside():
    logger = logging.getLogger("torchao")
    before = logger.level
    logger.setLevel(logging.INFO)
    try:
        with pytest.raises(RuntimeError), quiet():
            assert logger.getEffectiveLevel() == logging.ERROR
            raise RuntimeError
        assert logger.level == logging.INFO
    finally:
        logger.setLevel(before)
