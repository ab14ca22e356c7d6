"""Batches of labeled sequences are a function of the step; numbers are what the file's were."""

import numpy as np
import pytest
import torch

from lavagna.data import ExampleBatches, Examples
from lavagna.data.examples import scaled


def ragged(lengths, features=2, dtype=np.float32):
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.random.default_rng(0).standard_normal((offsets[-1], features)).astype(dtype)
    return Examples(values, offsets, np.arange(len(lengths)))


def test_a_batch_is_cut_anywhere_and_asked_for_at_any_time_the_same():
    batches = ExampleBatches(ragged([3] * 10), batch=4, seed=1)
    whole = batches.at(7)
    parts = [batches.rows(7, 0, 3), batches.rows(7, 3, 4)]
    assert torch.equal(torch.cat([part.x for part in parts]), whole.x)
    assert torch.equal(
        torch.cat([part.labels for part in parts]), ExampleBatches(batches.examples, batch=4, seed=1).at(7).labels
    )


def test_an_epoch_visits_each_sequence_once_and_the_next_in_another_order():
    batches = ExampleBatches(ragged([2] * 12), batch=4, seed=0)
    epochs = [torch.cat([batches.at(step).labels for step in range(3 * e, 3 * e + 3)]).tolist() for e in (0, 1)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(12)) and epochs[0] != epochs[1]
    assert epochs[0] != torch.cat([ExampleBatches(batches.examples, batch=12, seed=1).at(0).labels]).tolist()


def test_sequences_of_unequal_lengths_have_zeros_and_no_mask_behind_them():
    examples = ragged([1, 4, 2])
    x, mask, labels = examples.take(np.array([2, 0, 1]))
    assert mask.tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]
    assert labels.tolist() == [2, 0, 1] and not x[~mask].any()
    assert torch.equal(x[2], torch.from_numpy(examples.values[1:5]))


def test_sequences_of_one_length_need_no_mask():
    assert ragged([3, 3, 3]).take(np.array([0, 2])).mask is None


def test_some_of_the_sequences_are_those_and_in_that_order():
    examples = ragged([1, 4, 2, 3])
    some = examples.select(np.array([3, 1]))
    assert some.labels.tolist() == [3, 1] and some.lengths.tolist() == [3, 4]
    assert np.array_equal(some.values, np.concatenate([examples.values[7:10], examples.values[1:5]]))


@pytest.mark.parametrize("dtype", ["i1", "i2", "u1", "u2"])
def test_integers_fill_the_numbers_from_minus_one_to_one(dtype):
    limits = np.iinfo(dtype)
    low, high = scaled(np.array([limits.min, limits.max], dtype)).tolist()
    assert low == -1 and high == pytest.approx(1, abs=0.01) and high <= 1


@pytest.mark.parametrize("dtype", ["f4", "f8", "?"])
def test_other_numbers_stay_as_they_are(dtype):
    assert scaled(np.array([0, 1], dtype)).tolist() == [0, 1]


@pytest.mark.parametrize("wrong", [{"batch": 0, "seed": 0}, {"batch": 1, "seed": -1}])
def test_sizes_that_make_no_batch_are_refused(wrong):
    with pytest.raises(ValueError, match="Give 1 or more; seed from 0"):
        ExampleBatches(ragged([2]), **wrong)


@pytest.mark.parametrize("rows", [(-1, 0, 1), (0, 0, 3), (0, 2, 1)])
def test_rows_beyond_the_batch_are_refused(rows):
    with pytest.raises(ValueError, match="rows within 2"):
        ExampleBatches(ragged([2]), batch=2, seed=0).rows(*rows)
