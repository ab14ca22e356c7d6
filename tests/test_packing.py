"""Rows: real steps out of masks and packings, and back."""

import hypothesis.strategies as st
import torch
from hypothesis import given

from lavagna.packing import masked_rows, packed_rows


@given(lengths=st.lists(st.integers(0, 6), max_size=5), masked=st.booleans(), seed=st.integers(0, 99))
def test_packed_rows_hold_each_segments_real_steps_in_order(lengths, masked, seed):
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    t = offsets[-1]
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(1, t, generator=generator) > 0.4 if masked else None
    x = torch.arange(1, t + 1).reshape(1, t, 1)
    rows = packed_rows(offsets, mask)
    gathered = rows.gather(x)
    for n, (i, j) in enumerate(zip(offsets, offsets[1:], strict=False)):
        own = x[0, i:j, 0] if mask is None else x[0, i:j, 0][mask[0, i:j]]
        assert gathered[n, : len(own), 0].tolist() == own.tolist()
        assert not gathered[n, len(own) :].any()
        assert rows.counts[n] == len(own)
    kept = x if mask is None else x.masked_fill(~mask[..., None], 0)
    assert torch.equal(rows.scatter(gathered), kept)


@given(b=st.integers(0, 3), t=st.integers(0, 6), seed=st.integers(0, 99))
def test_masked_rows_gather_and_scatter_are_inverse(b, t, seed):
    mask = torch.rand(b, t, generator=torch.Generator().manual_seed(seed)) > 0.4
    x = torch.arange(1, b * t + 1).reshape(b, t)
    rows = masked_rows(mask)
    for row in range(b):
        assert rows.gather(x)[row, : int(mask[row].sum())].tolist() == x[row][mask[row]].tolist()
    assert torch.equal(rows.scatter(rows.gather(x)), x.masked_fill(~mask, 0))


def test_gradients_pass_through_gather_and_scatter():
    mask = torch.tensor([[True, False, True, True], [False, False, True, False]])
    rows = masked_rows(mask)
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rows.scatter(rows.gather(x) ** 2), x)


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=9))
def test_rows_of_like_length_cost_at_most_twice_their_steps_and_lose_none(lengths):
    offsets = torch.tensor([0, *lengths]).cumsum(0).tolist()
    groups = packed_rows(offsets).alike()
    assert sorted(row for members, _ in groups for row in members) == list(range(len(lengths)))
    assert sum(rows.index.numel() for _, rows in groups) <= 2 * sum(lengths)
    assert all(rows.counts.tolist() == [lengths[row] for row in members] for members, rows in groups)
