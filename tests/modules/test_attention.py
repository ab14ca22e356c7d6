"""Softmax attention over a cache whose rows are of unlike length."""

import pytest
import torch

from lavagna.modules import attention
from lavagna.modules.attention import append, attend, attend_one_by_one, newest


def test_new_entries_follow_each_row_s_own_last_one(device):
    cache = torch.tensor([[1.0, 2, 3], [7, 0, 0]], device=device).reshape(2, 3, 1, 1)
    new = torch.tensor([[4.0, 0], [8, 9]], device=device).reshape(2, 2, 1, 1)
    seen, total = torch.tensor([3, 1], device=device), torch.tensor([4, 3], device=device)
    assert append(cache, new, seen, total).flatten(1).tolist() == [[1, 2, 3, 4], [7, 8, 9, 0]]


@pytest.mark.parametrize("read", [attend, attend_one_by_one])
def test_each_query_reads_a_softmax_over_what_stands_before_it(device, read):
    q, k, v = (torch.randn(2, n, 3, 4, device=device, dtype=torch.float64) for n in (2, 5, 5))
    seen = torch.tensor([3, 1], device=device)
    output = read(q, k, v, seen)
    for row, first in enumerate((3, 1)):
        for j in range(2):
            visible = slice(0, first + j + 1)
            scores = torch.einsum("hk,mhk->hm", q[row, j], k[row, visible]) / 2
            right = torch.einsum("hm,mhv->hv", scores.softmax(-1), v[row, visible])
            assert torch.allclose(output[row, j], right, rtol=1e-12)


def test_both_ways_agree_where_nothing_is_cached(device):
    q, k, v = torch.randn(3, 2, 5, 3, 4, device=device, dtype=torch.float64)
    assert torch.allclose(attend(q, k, v, None), attend_one_by_one(q, k, v, None), rtol=1e-12)


def test_query_heads_share_heads_of_keys_and_values(device):
    q = torch.randn(2, 5, 6, 4, device=device, dtype=torch.float64)
    k, v = torch.randn(2, 2, 5, 2, 4, device=device, dtype=torch.float64)
    seen = torch.tensor([0, 0], device=device)
    right = attend(q, *(x.repeat_interleave(3, 2) for x in (k, v)), seen)
    for read in (attend, attend_one_by_one):
        assert torch.allclose(read(q, k, v, seen), right, rtol=1e-12)
        assert torch.allclose(read(q, k, v, None), right, rtol=1e-12)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("window", [1, 3, 5])
def test_blocks_of_a_window_read_what_one_query_after_the_other_does(device, monkeypatch, window, cached):
    monkeypatch.setattr(attention, "BLOCK", 4)
    seen = torch.tensor([window - 1, min(1, window - 1)], device=device) if cached else None
    q = torch.randn(2, 14, 2, 4, device=device, dtype=torch.float64)
    k, v = torch.randn(2, 2, 14 + (window - 1 if cached else 0), 2, 4, device=device, dtype=torch.float64)
    right = attend_one_by_one(q, k, v, seen, window=window)
    assert torch.allclose(attend(q, k, v, seen, window=window), right, rtol=1e-10)
    if window == 1 and cached is False:
        assert torch.allclose(right, v)


def test_the_newest_entries_of_each_row_are_kept(device):
    entries = torch.tensor([[1.0, 2, 3, 4], [7, 8, 0, 0]], device=device).reshape(2, 4, 1, 1)
    total = torch.tensor([4, 2], device=device)
    assert newest(entries, total, 3).flatten(1).tolist() == [[2, 3, 4], [7, 8, 0]]
    assert newest(entries, total, 1).flatten(1).tolist() == [[4], [8]]
    assert newest(entries, None, 3).flatten(1).tolist() == [[2, 3, 4], [8, 0, 0]]
    assert newest(entries, total, 4) is newest(entries, total, None) is entries
