"""The table of formats: known by name, told of in the documentation, and registered without a clash."""

import re
from pathlib import Path

import pytest

from checkpoints.stand_in import StandIn
from lavagna.checkpoints import formats
from lavagna.layers import rwkv5

PAGE = Path(__file__).parents[2] / "docs" / "checkpoints.md"


@pytest.mark.parametrize("name", formats.names())
def test_a_format_has_the_name_it_is_known_by_and_takes_nothing_for_its_own(name):
    assert formats.of_name(name).name == name
    assert not formats.of_name(name).recognizes({}, [])


def test_every_format_is_told_of():
    assert set(formats.names()) <= set(re.findall(r"`(\w+)`", PAGE.read_text()))


def test_a_name_that_is_taken_is_refused(monkeypatch):
    monkeypatch.setitem(formats.FORMATS, "stand_in", StandIn)
    assert formats.register(StandIn) is StandIn
    with pytest.raises(ValueError, match="the name 'stand_in' is taken. Give Other another"):
        formats.register(type("Other", (StandIn,), {}))
    with pytest.raises(ValueError, match="no format 'x'. Known are mamba"):
        formats.of_name("x")


def test_the_readme_and_the_chapter_name_every_format_and_the_same_ones():
    readme = Path(__file__).parents[2] / "README.md"
    told = [re.search(r"(?m)^\| written by .*\n(\|.*\n)+", page.read_text())[0] for page in (PAGE, readme)]
    assert told[0] == told[1]
    assert sorted(set(re.findall(r"`(\w+)`", told[0]))) == sorted(formats.names())
    assert all(version in told[0] for version in rwkv5.VERSIONS)
