"""The settings of a run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavagna.training import TrainConfig

CONFIGS = st.builds(
    TrainConfig,
    steps=st.integers(1, 10**9),
    batch=st.integers(1, 4096),
    micro_batch=st.none() | st.integers(1, 64),
    lr=st.floats(1e-8, 1.0),
    warmup=st.none() | st.integers(0, 10**6),
    schedule=st.sampled_from(["cosine", "wsd", "constant"]),
    betas=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)),
    seed=st.integers(0, 2**63 - 1),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    compile=st.booleans(),
)


@given(CONFIGS)
def test_settings_survive_json(config):
    assert TrainConfig.from_json(config.to_json()) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "steps came as 0, but an int >= 1"),
        ({"batch": True}, "batch came as True, but an int >= 1"),
        ({"micro_batch": 0}, "micro_batch came as 0, but an int >= 1 or None"),
        ({"lr": -1e-3}, "lr came as -0.001, but a number above 0"),
        ({"lr": float("nan")}, "lr came as nan, but a number above 0"),
        ({"lr": 1e-3, "min_lr": 1e-2}, "min_lr came as 0.01, but from 0 to lr, or None"),
        ({"schedule": "linear"}, "schedule came as 'linear', but one of cosine, wsd, constant"),
        ({"dtype": "float16"}, "dtype came as 'float16', but one of float32, bfloat16"),
        ({"betas": (0.9, 1.0)}, "two numbers from 0 to below 1"),
        ({"seed": 2**63}, "seed came as 9223372036854775808, but an int from 0 to 2^63 - 1"),
        ({"decay": 1.5}, "decay came as 1.5, but a part from 0 to 1"),
    ],
)
def test_a_wrong_setting_is_named_with_what_came_and_what_was_wanted(settings, message):
    with pytest.raises(ValueError) as caught:
        TrainConfig(**settings)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_setting_that_does_not_exist_is_refused_with_those_that_do():
    with pytest.raises(ValueError, match="there is no learning_rate; it has steps, batch"):
        TrainConfig.from_dict({"learning_rate": 1e-3})


def test_left_out_warm_up_is_a_twentieth_of_the_steps_and_the_smallest_rate_a_tenth():
    config = TrainConfig(steps=200, lr=1.0)
    assert config.rate(9) < 1.0 == config.rate(10)
    assert config.rate(200) == pytest.approx(0.1)
