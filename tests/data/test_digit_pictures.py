"""The digits are scikit-learn's, pixel by pixel."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lavagna.data import digits

sklearn_datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn, the extra 'digits', is not installed")


def test_a_sequence_is_a_picture_row_after_row_from_zero_to_one():
    images, labels = sklearn_datasets.load_digits(return_X_y=True)
    examples = digits()
    assert np.array_equal(examples.values.reshape(images.shape) * 16, images)
    assert np.array_equal(examples.labels, labels) and set(examples.lengths) == {64}


def test_an_enlarged_picture_is_interpolated_between_its_pixels():
    small, large = digits(), digits(enlarge=28)
    assert set(large.lengths) == {784}
    pixels = torch.from_numpy(small.values[:64].reshape(1, 1, 8, 8))
    wanted = F.interpolate(pixels, size=(28, 28), mode="bilinear").flatten()
    assert torch.equal(torch.from_numpy(large.values[:784, 0]), wanted)
    assert large.values.min() == 0 and large.values.max() == 1


def test_without_scikit_learn_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[digits\]'"):
        digits()


def test_a_side_below_one_pixel_is_refused():
    with pytest.raises(ValueError, match="enlarge came as 0"):
        digits(enlarge=0)
