"""The numbers behind the two faces."""

import torch

from lavagna.plots import faces
from lavagna.reproduce.faces import LEVELS, POURED, step_by_step, tub


def test_bars_times_what_was_poured_sum_to_the_levels_of_the_rings():
    poured = torch.tensor(POURED, dtype=torch.float64)
    assert torch.allclose(faces.weights(4) @ poured, step_by_step(tub(), poured), rtol=0, atol=1e-12)
    assert torch.allclose(faces.weights(4) @ poured, poured.new_tensor(LEVELS), rtol=0, atol=1e-12)


def test_each_row_is_the_same_filter_pushed_on_and_has_a_name_for_every_bar():
    rows = faces.weights(4)
    assert torch.equal(rows, rows.tril())
    assert all(torch.equal(rows[t, : t + 1], rows[3, 3 - t :]) for t in range(4))
    assert {count for count in rows.flatten().tolist() if count} == set(faces.FRACTIONS)
