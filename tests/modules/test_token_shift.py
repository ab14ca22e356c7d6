"""The token shift: both ways of writing a blend, its start, and its window under cuts, masks and packing."""

import pytest
import torch

from lavagna.modules.steps import Steps
from lavagna.modules.token_shift import DynamicShift, Start, TokenShift

STARTS = {"k": Start(1.0), "v": Start(0.5, 0.3)}


def shift_of(kind, device):
    torch.manual_seed(3)
    made = {
        "now": lambda: TokenShift(6, STARTS, toward="now"),
        "before": lambda: TokenShift(6, STARTS, toward="before"),
        "dynamic": lambda: DynamicShift(6, {"x": Start(1.0), **STARTS}, rank=3),
    }[kind]()
    made.reset_parameters()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += torch.randn_like(parameter)
    return made.to(device, torch.float64)


def called(shift, x, window=None, **options):
    steps = Steps("shift", x, **options)
    if window is None:
        window = shift.initial_window(steps.sequences, x.device, x.dtype)
    read, after = shift(x, window, steps)
    return torch.stack(read, -1), after


kinds = pytest.mark.parametrize("kind", ["now", "before", "dynamic"])


def test_a_blend_towards_now_is_one_towards_before_turned_around(device):
    now, before = shift_of("now", device), shift_of("before", device)
    with torch.no_grad():
        for reader in STARTS:
            before.get_parameter(reader).copy_(1 - now.get_parameter(reader))
    x = torch.randn(2, 5, 6, device=device, dtype=torch.float64)
    assert torch.allclose(called(now, x)[0], called(before, x)[0], atol=1e-14)
    past = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
    right = [x * now.get_parameter(reader) + past * (1 - now.get_parameter(reader)) for reader in STARTS]
    assert torch.allclose(called(now, x)[0], torch.stack(right, -1), atol=1e-14)


def test_a_dynamic_blend_is_its_formula(device):
    shift, x = shift_of("dynamic", device), torch.randn(5, 6, device=device, dtype=torch.float64)
    gap = torch.cat([torch.zeros_like(x[:1]), x[:-1]]) - x
    middle = torch.tanh((x + gap * shift.x) @ shift.adapter.down.weight.T)
    for i, reader in enumerate(("k", "v")):
        mu = shift.get_parameter(reader) + middle[:, 3 * i : 3 * i + 3] @ shift.adapter.up[i].T
        assert torch.allclose(called(shift, x[None])[0][0, ..., i], x + gap * mu, atol=1e-14)


@kinds
def test_a_window_is_the_last_real_step_however_a_text_is_cut_padded_or_packed(device, kind):
    shift, x = shift_of(kind, device), torch.randn(1, 7, 6, device=device, dtype=torch.float64)
    whole, last = called(shift, x)
    assert torch.equal(last[0], x[0, -1:])
    first, middle = called(shift, x[:, :3])
    second, end = called(shift, x[:, 3:], middle)
    assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-14) and torch.equal(end, last)
    for holes in ([0, 1], [3, 4], [7, 8]):  # left, inside, right
        mask = torch.ones(1, 9, device=device, dtype=torch.bool)
        mask[0, holes] = False
        padded = torch.full((1, 9, 6), 1e3, device=device, dtype=torch.float64)
        padded[mask] = x[0]
        read, after = called(shift, padded, mask=mask)
        assert torch.allclose(read[mask], whole[0], atol=1e-14) and torch.equal(after, last)
    packed, lasts = called(shift, torch.cat([x, x[:, :4]], 1), cu_seqlens=[0, 7, 7, 11])
    assert torch.allclose(packed, torch.cat([whole, whole[:, :4]], 1), atol=1e-14)
    assert torch.equal(lasts, torch.stack([x[0, -1:], torch.zeros_like(x[0, -1:]), x[0, 3:4]]))


def test_a_blend_starts_with_more_of_the_current_step_channel_by_channel():
    for toward, sign in (("now", 1), ("before", -1)):
        shift = TokenShift(4, STARTS, toward=toward)
        shift.reset_parameters()
        right = torch.tensor([0.3, 0.8, 0.3 + 0.5**0.5, 0.3 + 0.75**0.5])
        assert torch.allclose(shift.get_parameter("v"), right if sign == 1 else 1 - right)
        assert all(parameter.no_weight_decay for parameter in shift.parameters())


def test_blends_of_half_precision_are_rounded_once(device):
    shift = shift_of("before", device).bfloat16()
    assert {parameter.dtype for parameter in shift.parameters()} == {torch.float32}
    x = torch.randn(1, 5, 6, device=device).bfloat16()
    read, after = called(shift, x)
    right = called(shift.double(), x.double())[0]
    assert read.dtype == after.dtype == torch.bfloat16 and torch.equal(read, right.bfloat16())
