"""The time axis of one call: what is counted, hidden and where tokens stand."""

import pytest
import torch

from lavagna import identity, recur
from lavagna.modules.steps import Steps

SEEN = torch.tensor([10, 20])


def test_positions_count_each_row_s_real_tokens_from_the_first_ever_seen(device):
    x, seen = torch.zeros(2, 4, 3, device=device), SEEN.to(device)
    assert Steps("call", x).positions(seen).tolist() == [[10, 11, 12, 13], [20, 21, 22, 23]]
    steps = Steps("call", x, mask=torch.tensor([[0, 1, 0, 1], [1, 1, 1, 0]], device=device))
    assert steps.positions(seen).tolist() == [[0, 10, 0, 11], [20, 21, 22, 0]]
    assert steps.counts.tolist() == [2, 3]


def test_positions_of_packed_tokens_are_those_in_their_own_sequence(device):
    steps = Steps("call", torch.zeros(1, 5, 3, device=device), cu_seqlens=[0, 2, 5])
    assert steps.positions(SEEN.to(device)).tolist() == [[10, 11, 20, 21, 22]]
    assert steps.sequences == 2 and steps.counts.tolist() == [2, 3]


def test_what_is_hidden_is_zero_and_gets_no_gradient(device):
    x = torch.tensor([[[1.0], [torch.nan], [3.0]]], device=device, requires_grad=True)
    steps = Steps("call", x, mask=torch.tensor([[1, 0, 1]], device=device))
    hidden = steps.hide(x)
    (2 * hidden).sum().backward()
    assert hidden.flatten().tolist() == [1, 0, 3] and x.grad.flatten().tolist() == [2, 0, 2]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, [[3, 2, 1, 0], [7, 6, 5, 4]]),
        ({"mask": [[0, 1, 0, 1], [1, 1, 1, 0]]}, [[0, 3, 2, 1], [6, 5, 4, 7]]),
        ({"cu_seqlens": [0, 3, 3, 8]}, [[2, 1, 0, 7, 6, 5, 4, 3]]),
        ({"cu_seqlens": [0, 3, 8], "mask": [[1, 1, 0, 1, 1, 0, 0, 1]]}, [[1, 0, 2, 7, 4, 5, 6, 3]]),
    ],
)
def test_each_sequence_s_real_steps_are_turned_around_and_back(options, wanted, device):
    x = torch.arange(8, device=device).reshape(1 if "cu_seqlens" in options else 2, -1)
    given = {name: torch.tensor(value, device=device) for name, value in options.items()}
    steps = Steps("call", x, **given)
    assert steps.reverse(x).tolist() == wanted
    assert torch.equal(steps.reverse(steps.reverse(x)), x)
    assert torch.equal(steps.reverse(x[..., None].expand(-1, -1, 2))[..., 1], torch.tensor(wanted, device=device))


def test_no_steps_are_turned_around_too(device):
    x = torch.zeros(1, 0, 3, device=device)
    assert Steps("call", x, cu_seqlens=[0, 0]).reverse(x).shape == x.shape


@pytest.mark.parametrize(
    ("options", "wanted", "after"),
    [
        ({}, [[-1, 0, 1, 2], [-2, 4, 5, 6]], [3, 7]),
        ({"mask": [[0, 1, 0, 1], [0, 0, 0, 0]]}, [[0, -1, 0, 1], [0, 0, 0, 0]], [3, -2]),
        ({"cu_seqlens": [0, 3, 3, 8]}, [[-1, 0, 1, -3, 3, 4, 5, 6]], [2, -2, 7]),
    ],
)
def test_the_step_before_is_the_last_real_one_of_the_same_sequence(options, wanted, after, device):
    x = torch.arange(8, device=device).reshape(1 if "cu_seqlens" in options else 2, -1)
    given = {name: torch.tensor(value, device=device) for name, value in options.items()}
    before, last = Steps("call", x, **given).before(x, torch.tensor([-1, -2, -3], device=device)[: len(after)])
    assert before.tolist() == wanted and last.tolist() == after


def test_a_step_in_parts_is_that_many_steps_of_the_recurrence_under_a_mask_and_packing(device):
    q, k, v = torch.randn(3, 1, 10, 1, 2, device=device, dtype=torch.float64)
    memory = torch.zeros(2, 1, 2, 2, device=device, dtype=torch.float64)
    mask = torch.tensor([[1, 0, 1, 1, 1]], device=device)
    steps = Steps("call", q[:, ::2], mask=mask, cu_seqlens=[0, 2, 5])
    output, last = steps.recur(identity(), q, k, v, memory, parts=2)
    right, end = recur(identity(), q, k, v, memory, mask=mask.repeat_interleave(2, 1), cu_seqlens=[0, 4, 10])
    assert torch.equal(output, right) and torch.equal(last, end)
    assert not output[:, 2:4].any() and output[:, 1].any()
