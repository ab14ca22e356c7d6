"""From the options of `train` to configurations."""

from lavagna.cli.choices import chosen_model, chosen_training, parse_options
from lavagna.models import ClassifierConfig, ModelConfig
from lavagna.training import TrainConfig

KIND, SIZES = ModelConfig.kind, {"vocab_size": 256}


def test_values_are_read_as_what_they_look_like():
    words = ["a=1", "b=0.5", "c=true", "d=None", "e=relu", "f=(0.1, 0.2)"]
    assert parse_options(words) == {"a": 1, "b": 0.5, "c": True, "d": None, "e": "relu", "f": (0.1, 0.2)}


def test_a_width_beside_a_preset_wins():
    assert chosen_model({"preset": "1m", "d_model": 64}, KIND, SIZES, None).d_model == 64


def test_a_classifier_is_small_unless_a_preset_or_a_size_is_given():
    kind, sizes = ClassifierConfig.kind, {"features": 1, "classes": 3}
    alone, wide = (chosen_model({"layer": "gla", **given}, kind, sizes, None) for given in ({}, {"d_model": 32}))
    assert (alone.d_model, alone.depth, wide.d_model, wide.depth) == (64, 4, 32, 4)
    assert chosen_model({"layer": "gla", "preset": "4m"}, kind, sizes, None).d_model == 256
    assert chosen_model({"layer": "gla,mamba2,s4d,s5,dss"}, kind, sizes, None).depth == 5


def test_what_is_left_open_is_as_the_run_has_it():
    stored = chosen_model({"layer": "gla", "d_model": 32, "depth": 3, "option": ["heads=2"]}, KIND, SIZES, None)
    assert chosen_model({}, KIND, SIZES, stored.to_dict()) == stored
    assert chosen_training({"steps": 7}, TrainConfig(lr=0.1)) == TrainConfig(lr=0.1, steps=7)
