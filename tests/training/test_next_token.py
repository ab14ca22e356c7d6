"""Learning the next token, and how it is judged."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lavagna.data import sequential
from lavagna.models import LanguageModel
from lavagna.training.distributed import World
from lavagna.training.next_token import Validation, bits_per_byte, next_token_loss


@pytest.fixture
def model(model_config, device) -> LanguageModel:
    return LanguageModel(model_config).to(device)


def test_the_loss_is_the_mean_surprise_of_each_next_token(model, device):
    rows = torch.randint(256, (3, 9), device=device)
    logits = model(rows).logits
    surprises = [-F.log_softmax(logits[b, t].double(), 0)[rows[b, t + 1]].item() for b in range(3) for t in range(8)]
    assert next_token_loss(model, rows).item() == pytest.approx(sum(surprises) / 24, rel=1e-5)


def test_even_odds_among_bytes_are_eight_bits_a_byte():
    assert bits_per_byte(math.log(256), 1.0) == pytest.approx(8.0)
    assert bits_per_byte(math.log(65536), 2.0) == pytest.approx(8.0)


def test_an_evaluation_of_all_the_text_is_its_mean_loss(model, texts, config, device):
    # A whole number of full batches, so that each token is looked at once.
    tokens = texts.validation.ids[: 5 * config.batch * config.context + 1]
    rows = torch.cat(list(sequential(tokens, batch=config.batch, context=config.context))).to(device)
    everything = Validation(tokens, replace(config, evaluate_batches=1000)).loss(model, World(device))
    assert everything == pytest.approx(next_token_loss(model, rows).item(), rel=1e-6)


def test_an_evaluation_is_the_same_each_time_and_in_portions(model, texts, config, device):
    validation = Validation(texts.validation, config)
    first = validation.loss(model, World(device))
    assert validation.loss(model, World(device)) == first
    portioned = Validation(texts.validation, replace(config, micro_batch=3))
    assert portioned.loss(model, World(device)) == pytest.approx(first, rel=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_an_evaluation_leaves_no_gradient_and_the_mode_that_was(model, texts, config, device, training):
    model.train(training)
    Validation(texts.validation, config).loss(model, World(device))
    assert model.training is training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_text_shorter_than_the_context_is_judged_in_shorter_windows(model, config, device):
    tokens = np.arange(7)
    loss = Validation(tokens, config).loss(model, World(device))
    assert loss == pytest.approx(next_token_loss(model, torch.arange(7, device=device)[None]).item(), rel=1e-5)
    assert not Validation(np.arange(1), config).possible
