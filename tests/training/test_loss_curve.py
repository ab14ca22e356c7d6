"""The loss of a run as a picture."""

import matplotlib.image
import numpy as np
import pytest

from lavagna.training.loss_curve import _smooth, draw_loss_curve


def records(losses):
    return [{"step": i + 1, "loss": loss, "bits_per_byte": loss * 1.44} for i, loss in enumerate(losses)]


def ink(path) -> np.ndarray:
    return matplotlib.image.imread(path)[..., :3]


def test_the_picture_shows_the_losses(tmp_path):
    draw_loss_curve(records([3.0, 2.0, 1.0]), tmp_path / "a.png")
    draw_loss_curve(records([3.0, 1.2, 1.0]), tmp_path / "b.png")
    draw_loss_curve([*records([3.0, 2.0, 1.0]), {"step": 2, "validation_loss": 2.5}], tmp_path / "c.png")
    first, other, validated = (ink(tmp_path / f"{name}.png") for name in "abc")
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, validated)


def test_a_picture_that_fails_leaves_the_one_that_was_there(tmp_path):
    path = tmp_path / "loss.png"
    draw_loss_curve(records([3.0, 2.0]), path)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        draw_loss_curve([{"step": 1, "loss": "no number"}, {"step": 2, "loss": 1.0}], path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_a_run_without_a_step_yet_can_be_drawn(tmp_path):
    draw_loss_curve([], tmp_path / "loss.png")
    assert ink(tmp_path / "loss.png").min() < 0.5


def test_smoothing_leaves_a_constant_alone_and_lies_between_the_extremes():
    assert _smooth([2.0] * 200) == pytest.approx([2.0] * 200)
    smoothed = _smooth([1.0, 3.0] * 200)
    assert smoothed[0] == 1.0 and smoothed[-1] == pytest.approx(2.0, abs=0.2)


def test_a_short_run_is_not_smoothed():
    assert _smooth([3.0, 2.0, 1.0]) == [3.0, 2.0, 1.0]
