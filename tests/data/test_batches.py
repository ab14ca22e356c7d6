"""Batches are a function of the step and show each window once an epoch."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lavagna.data import Batches, sequential

sizes = st.tuples(st.integers(2, 400), st.integers(1, 20), st.integers(1, 9)).filter(lambda s: s[0] > s[1])


@given(sizes=sizes, seed=st.integers(0, 99), epoch=st.integers(0, 5))
def test_an_epoch_shows_each_window_once(sizes, seed, epoch):
    length, context, _ = sizes
    batches = Batches(np.arange(length), batch=1, context=context, seed=seed)
    rows = [batches.at(epoch * batches.windows + i)[0] for i in range(batches.windows)]
    targets = torch.cat([row[1:] for row in rows])
    assert len(targets.unique()) == len(targets) == (length - 1) // context * context


@given(sizes=sizes, seed=st.integers(0, 99), step=st.integers(0, 10**9))
def test_a_row_is_a_run_of_the_text(sizes, seed, step):
    length, context, batch = sizes
    ids = Batches(np.arange(length), batch=batch, context=context, seed=seed).at(step)
    assert torch.equal(ids, ids[:, :1] + torch.arange(context + 1))


@given(sizes=sizes, step=st.integers(0, 10**9), data=st.data())
def test_the_rows_of_ranks_make_up_the_batch(sizes, step, data):
    length, context, batch = sizes
    batches = Batches(np.arange(length), batch=batch, context=context, seed=1)
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, batch), max_size=4))), batch]
    parts = [batches.rows(step, a, b) for a, b in zip(cuts, cuts[1:], strict=False)]
    assert torch.equal(torch.cat(parts), batches.at(step))


def test_a_step_is_the_same_in_whatever_order_it_is_asked_for():
    first, second = (Batches(np.arange(999), batch=4, context=16, seed=5) for _ in range(2))
    forward = [first.at(step) for step in range(50)]
    for step in reversed(range(50)):
        assert torch.equal(second.at(step), forward[step])


def test_a_step_is_the_same_in_another_process():
    code = (
        "import numpy as np; from lavagna.data import Batches;"
        "print(Batches(np.arange(999), batch=4, context=16, seed=5).at(77).tolist())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert out.stdout.strip() == str(Batches(np.arange(999), batch=4, context=16, seed=5).at(77).tolist())


def test_the_seed_and_the_epoch_change_the_order():
    def order(seed, epoch):
        batches = Batches(np.arange(1001), batch=100, context=10, seed=seed)
        return batches.at(epoch)[:, 0].tolist()

    assert order(0, 0) != order(1, 0)
    assert order(0, 0) != order(0, 1)
    assert sorted(order(0, 0)) == sorted(order(0, 1))


def test_what_the_windows_leave_over_is_seen_in_some_epoch():
    batches = Batches(np.arange(30), batch=1, context=16, seed=0)
    assert torch.cat([batches.at(epoch) for epoch in range(100)]).unique().tolist() == list(range(30))


@pytest.mark.parametrize("dtype", ["u1", "<u2", "<u4"])
def test_ids_of_any_width_come_as_int64(dtype):
    largest = np.iinfo(dtype).max
    ids = Batches(np.full(9, largest, dtype), batch=2, context=8, seed=0).at(0)
    assert ids.dtype == torch.int64
    assert (ids == int(largest)).all()


def test_a_text_shorter_than_the_context_says_what_would_do():
    with pytest.raises(ValueError, match="8 tokens, but context 8 needs 9.* at most 7"):
        Batches(np.arange(8), batch=1, context=8, seed=0)


def test_a_text_of_one_window_is_enough():
    assert Batches(np.arange(9), batch=1, context=8, seed=0).at(3).tolist() == [list(range(9))]


@pytest.mark.parametrize("options", [{"batch": 0}, {"context": 0}, {"seed": -1}])
def test_sizes_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match="Batches: got"):
        Batches(np.arange(99), **{"batch": 1, "context": 8, "seed": 0, **options})


@pytest.mark.parametrize("place", [(-1, 0, 2), (0, 1, 3), (0, -1, 1), (0, 2, 1)])
def test_steps_and_rows_outside_are_refused(place):
    with pytest.raises(ValueError, match="rows within 2"):
        Batches(np.arange(99), batch=2, context=8, seed=0).rows(*place)


@given(length=st.integers(2, 300), context=st.integers(1, 40), batch=st.integers(1, 6))
def test_sequential_predicts_every_id_but_the_first_once_and_in_order(length, context, batch):
    ids = list(sequential(np.arange(length), batch=batch, context=context))
    assert torch.cat([rows[:, 1:].flatten() for rows in ids]).tolist() == list(range(1, length))
    assert all(rows.shape[0] <= batch and rows.shape[1] <= context + 1 for rows in ids)


def test_sequential_over_too_little_says_so():
    with pytest.raises(ValueError, match="got 1 tokens"):
        sequential(np.arange(1), batch=1, context=4)


def _environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
