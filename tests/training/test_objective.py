"""What every task is cut into and judged with."""

import pytest
import torch

from lavagna.training.objective import judging, portions


@pytest.mark.parametrize("size", [None, 1, 3, 4, 100])
def test_portions_cover_a_range_once_in_order(size):
    pieces = list(portions(2, 12, size))
    assert [row for low, high in pieces for row in range(low, high)] == list(range(2, 12))
    assert all(high - low <= (size or 10) for low, high in pieces)
    assert len(pieces) == -(-10 // (size or 10))


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_judged_in_eval_mode_without_gradients_and_then_is_as_it_was(training):
    model = torch.nn.Dropout().train(training)
    with judging(model):
        assert not model.training and not torch.is_grad_enabled()
    assert model.training is training and torch.is_grad_enabled()
