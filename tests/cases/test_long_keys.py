"""The delta rule where its recurrence grows without bound."""

import pytest
import torch

import lavagna as lv
from transitions import EVERY_WAY, difference


@EVERY_WAY
@pytest.mark.parametrize("dose", ["random", 0.5, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_keys_as_long_as_they_come_from_a_projection_give_the_numbers_of_the_definition(
    form, backend, dose, seed, device
):
    """Keys of norm 8 make a step stretch the memory about threefold, up to 1e30 in all: float32 can hold that."""
    torch.manual_seed(seed)
    k, v, q = (torch.randn(1, 64, 1, 64, device=device).half().float() for _ in range(3))
    beta = (
        torch.rand(1, 64, 1, 1, device=device) if dose == "random" else torch.full((1, 64, 1, 1), dose, device=device)
    )
    inputs = [x.requires_grad_() for x in (q, k, v, beta)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    results = []
    for (q, k, v, beta), way in ((inputs, (form, backend)), (wide, ("recurrent", "torch"))):
        output, state = lv.recur(lv.householder(k, beta), q, k, beta * v, form=way[0], backend=way[1])
        # Two steps from the end, so that the gradients too stay within what float32 can hold.
        results.append([output, state, *torch.autograd.grad(output[:, -2:].mean(), (q, k, v, beta))])
    for index, (ours, right) in enumerate(zip(*results, strict=True)):
        assert ours.isfinite().all()
        assert difference(ours, right) < (1e-3 if index < 2 else 1e-2)


@EVERY_WAY
def test_what_a_half_precision_output_cannot_hold_is_infinite_and_never_nan(form, backend, device):
    k, v, q = (torch.randn(1, 64, 1, 64, device=device).half() for _ in range(3))
    beta = torch.full((1, 64, 1, 1), 0.5, device=device)
    output, state = lv.recur(lv.householder(k, beta), q, k, (beta * v).half(), form=form, backend=backend)
    assert output.isinf().any() and not output.isnan().any()
    assert state.dtype == torch.float32 and state.isfinite().all()


@EVERY_WAY
def test_float64_holds_what_float32_cannot(form, backend, device):
    k, v, q = (torch.randn(1, 64, 1, 64, device=device).half().double() for _ in range(3))
    a = lv.householder(k, torch.ones(1, 64, 1, 1, dtype=torch.float64, device=device))
    ours, right = (
        lv.recur(a, q, k, v, form=form, backend=backend),
        lv.recur(a, q, k, v, form="recurrent", backend="torch"),
    )
    assert right.state.abs().max() > torch.finfo(torch.float32).max
    assert difference(ours.output, right.output) < 1e-9 and difference(ours.state, right.state) < 1e-9
