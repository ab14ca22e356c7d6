"""Presets have the parameters that their names say, whatever the layer."""

import pytest

import lavagna as lv
from lavagna.models.presets import PRESETS, preset
from lavagna.models.size import parameters


@pytest.mark.parametrize("layer", [*lv.layers.names(), ["gla", "softmax_attention"]], ids=str)
@pytest.mark.parametrize("size", PRESETS)
@pytest.mark.sampled(3)
def test_a_preset_has_the_parameters_of_its_name(size, layer):
    count, unit = float(size[:-1]), {"m": 1e6, "b": 1e9}[size[-1]]
    # Half a block too few or too many: a block of the smallest preset is a fifth of it.
    assert parameters(preset(size, layer)) == pytest.approx(count * unit, rel=0.15)


def test_another_vocabulary_changes_the_embedding_alone():
    own, other = preset("15m", "gla"), preset("15m", "gla", vocab_size=500)
    assert other.depth == own.depth
    assert parameters(own) - parameters(other) == (own.vocab_size - 500) * own.d_model


def test_an_unknown_size_lists_the_known():
    with pytest.raises(ValueError, match="one of 1m, 4m, .* but came as '7b'"):
        preset("7b", "gla")
