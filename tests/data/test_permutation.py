"""The order of windows is a permutation, and a well mixed one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavagna.data.permutation import permuted


@given(size=st.integers(1, 3000), key=st.tuples(st.integers(0, 2**40), st.integers(0, 2**40)))
def test_every_index_goes_to_a_place_of_its_own(size, key):
    assert np.sort(permuted(np.arange(size), size, key=key)).tolist() == list(range(size))


@given(size=st.integers(1, 2**62), key=st.tuples(st.integers(0, 9)), data=st.data())
def test_an_index_goes_to_the_same_place_in_any_company(size, key, data):
    index = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20)))
    together = permuted(index, size, key=key)
    assert together.tolist() == [permuted(index[i : i + 1], size, key=key).item() for i in range(len(index))]
    assert (together >= 0).all() and (together < size).all()


@pytest.mark.parametrize("size", [5, 7, 64])
def test_over_many_keys_an_index_is_as_often_in_every_place(size):
    places = [permuted(np.array([0]), size, key=(0, epoch)).item() for epoch in range(100 * size)]
    counts = np.bincount(places, minlength=size)
    # Chi-squared has mean size - 1 and variance twice that; five deviations away is one seed in millions.
    assert ((counts - 100) ** 2 / 100).sum() < size - 1 + 5 * (2 * (size - 1)) ** 0.5


def test_neighbors_do_not_stay_neighbors():
    order = permuted(np.arange(10_000), 10_000, key=(3, 4))
    assert (np.abs(np.diff(order)) == 1).sum() < 20
