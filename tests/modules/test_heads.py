"""How a width is shared among heads, and what is said where it can't be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavagna.modules.heads import Heads, expanded, groups_of, heads_of, value_heads_of


@given(sixteens=st.integers(1, 300))
def test_any_multiple_of_16_has_default_heads_of_a_size_that_kernels_like(sixteens):
    count, size = heads_of("layer", 16 * sixteens, None, None)
    assert count * size == 16 * sixteens and size % 8 == 0 and 16 <= size <= 64


def test_heads_together_have_the_width_that_they_share():
    assert heads_of("layer", 48, 3, None).width == 48 and Heads(6, 256).width == 1536


def test_what_is_given_is_taken():
    assert heads_of("layer", 48, 3, None) == Heads(3, 16)
    assert heads_of("layer", 48, None, 12) == Heads(4, 12)
    assert heads_of("layer", 48, 6, 256) == Heads(6, 256)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((5, None), r"layer: heads=5 does not divide d_model = 48. Use heads=4, or give both"),
        ((None, 10), r"layer: head_dim=10 does not divide d_model = 48. Use head_dim=8"),
        ((0, None), "heads must be an int >= 1, but came as 0"),
        ((None, True), "head_dim must be an int >= 1, but came as True"),
    ],
)
def test_heads_that_do_not_divide_say_what_would(options, message):
    with pytest.raises(ValueError, match=message):
        heads_of("layer", 48, *options)


def test_groups_of_keys_divide_the_heads_and_are_as_wide_as_the_model_up_to_128():
    assert groups_of("layer", 48, Heads(6, 8), 3, None) == Heads(3, 48)
    assert groups_of("layer", 256, Heads(6, 8), 1, None) == Heads(1, 128)
    assert groups_of("layer", 256, Heads(6, 8), 2, 5) == Heads(2, 5)


@pytest.mark.parametrize(
    ("groups", "d_state", "message"),
    [
        (4, 8, "layer: groups=4 does not divide heads = 6. Use groups=3."),
        (0, 8, "groups must be an int >= 1, but came as 0"),
        (2, 0, "d_state must be an int >= 1, but came as 0"),
    ],
)
def test_groups_that_cannot_be_say_what_could(groups, d_state, message):
    with pytest.raises(ValueError, match=message):
        groups_of("layer", 48, Heads(6, 8), groups, d_state)


def test_value_heads_are_a_multiple_and_as_wide_as_asked():
    assert value_heads_of("layer", Heads(2, 8), 6, 1.5) == Heads(6, 12)
    assert value_heads_of("layer", Heads(2, 8), None, 2) == Heads(2, 16)
    with pytest.raises(ValueError, match="multiple of heads = 2, but came as 5. Use value_heads=4"):
        value_heads_of("layer", Heads(2, 8), 5, 1)


def test_a_width_must_come_out_whole():
    assert expanded("layer", "head_dim", 10, 0.5) == 5
    assert expanded("layer", "head_dim", 93, 13 / 93) == 13
    with pytest.raises(ValueError, match="expand=0.33 times head_dim = 10 .*Use expand=0.3"):
        expanded("layer", "head_dim", 10, 0.33)
    for endless in (float("inf"), float("nan")):
        with pytest.raises(ValueError, match="expand must be a finite number above 0"):
            expanded("layer", "head_dim", 10, endless)


def test_a_width_of_any_size_is_shared_at_once():
    assert heads_of("layer", 10**12, None, None) == Heads(10**12 // 64, 64)
    assert heads_of("layer", 2 * (10**9 + 7), None, None) == Heads(10**9 + 7, 2)
