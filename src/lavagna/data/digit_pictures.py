"""Handwritten digits read pixel by pixel: real sequences with labels that need no download."""

import numpy as np
import torch
from torch.nn import functional as F

from lavagna.data.examples import Examples
from lavagna.extras import optional

DIGITS = "digits"
SIDE = 8
LARGEST = 16.0


def digits(*, enlarge: int | None = None) -> Examples:
    """scikit-learn's 1797 digits of 8 by 8 pixels as sequences of 64 steps of one number from 0 to 1, row after row.

    `enlarge` makes each picture so many pixels wide and high first, by bilinear interpolation: 28 gives 784 steps, as
    many as MNIST's.

    Raises `ValueError` on an `enlarge` below 1, and where scikit-learn is not installed.

    Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (its test part).
    """
    if enlarge is not None and enlarge < 1:
        raise ValueError(f"digits: enlarge came as {enlarge}, but a side of 1 pixel or more was wanted, such as 28.")
    sklearn = optional("sklearn.datasets", call="digits", extra="digits", why="scikit-learn brings them")
    images, labels = sklearn.load_digits(return_X_y=True)
    pictures = torch.from_numpy(np.asarray(images, np.float32).reshape(-1, 1, SIDE, SIDE) / np.float32(LARGEST))
    if enlarge is not None:
        pictures = F.interpolate(pictures, size=(enlarge, enlarge), mode="bilinear", align_corners=False)
    values = pictures.flatten(1)
    offsets = np.arange(len(labels) + 1) * values.shape[1]
    return Examples(values.reshape(-1, 1).numpy(), offsets, np.asarray(labels, np.int64))
