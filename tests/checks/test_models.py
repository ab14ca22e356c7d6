"""Whole models against the definition."""

import pytest
import torch

from lavagna import LanguageModel, ModelConfig
from lavagna.checks import model_rows
from lavagna.checks.models import uneven
from lavagna.checks.row import distance, row


@pytest.mark.parametrize("layer", ["gated_delta_net", ["gla", "softmax_attention"]])
def test_a_model_answers_the_same_in_every_form_and_every_cut(layer, device):
    model = LanguageModel(ModelConfig(layer, 32, 2, 64)).to(device)
    ids = torch.randint(64, (2, 30), device=device)
    rows = list(model_rows(model, ids, (torch.float64, torch.float32)))
    assert {row.form for row in rows} >= {"recurrent", "parallel", "cut in pieces", "token by token"}
    assert all(row.ok for row in rows)


def test_the_model_itself_is_left_as_it_is(device):
    model = LanguageModel(ModelConfig("gla", 32, 1, 64)).to(device).train()
    list(model_rows(model, torch.randint(64, (1, 5), device=device), (torch.float64,)))
    assert model.training and model.embedding.weight.dtype == torch.float32


@pytest.mark.parametrize("length", [1, 5, 20, 100])
def test_pieces_make_up_the_whole(length):
    assert sum(uneven(length)) == length


def test_a_difference_that_is_no_number_does_not_hold(device):
    wanted = torch.ones(3, device=device)
    difference = distance([wanted, wanted * float("nan")], [wanted, wanted])
    assert not row(("scan", "torch"), "x", torch.float64, "output", difference).ok
