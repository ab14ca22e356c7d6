"""One update after another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lavagna.data import Splits
from lavagna.layers import registry
from lavagna.models import LanguageModel, ModelConfig
from lavagna.training import NonFiniteLossError
from lavagna.training.distributed import World
from lavagna.training.next_token import NextToken, next_token_loss
from lavagna.training.trainer import Trainer

LAYERS = registry.names()


def language_model(layer: str, device: torch.device, **settings) -> LanguageModel:
    return LanguageModel(ModelConfig(layer=layer, d_model=32, depth=2, vocab_size=50, **settings)).to(device)


@pytest.fixture
def trainer(config, device):
    """A trainer of a small model on random ids, with some settings changed."""

    def build(layer="linear_attention", **settings) -> Trainer:
        changed = replace(config, **settings)
        tokens = np.random.default_rng(0).integers(50, size=2000)
        objective = NextToken(Splits(tokens, tokens, None), changed, None)
        return Trainer(language_model(layer, device), changed, objective, World(device))

    return build


@pytest.mark.parametrize("length", [9, 1])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_parameter_gets_a_gradient(layer, tied, length, device):
    model = language_model(layer, device, tie_embeddings=tied)
    next_token_loss(model, torch.randint(50, (2, length + 1), device=device)).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layer", LAYERS)
def test_recomputed_activations_give_the_same_loss_and_gradients_bit_for_bit(layer, dtype, device):
    model = language_model(layer, device)
    rows = torch.randint(50, (2, 34), device=device)
    seen = []
    for model.checkpointing in (False, True):
        model.zero_grad()
        loss = next_token_loss(model, rows, dtype)
        loss.backward()
        seen.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(kept, recomputed) for kept, recomputed in zip(*seen, strict=True))


def test_an_update_reports_the_whole_gradients_norm_before_clipping_and_its_rate(trainer):
    once = trainer(clip=1e-3)
    rows = once.objective.rows(0, 0, once.config.batch).to(once._world.device)
    loss = next_token_loss(once.model, rows)
    gradients = torch.autograd.grad(loss, list(once.model.parameters()))
    norm = sum(gradient.double().square().sum() for gradient in gradients).sqrt()
    update = once.update(0)
    assert update.loss == pytest.approx(loss.item(), rel=1e-6)
    assert update.grad_norm == pytest.approx(norm.item(), rel=1e-5)
    assert update.lr == once.config.rate(0)


def test_adam_sees_a_gradient_no_longer_than_the_clip(trainer):
    once = trainer(clip=1e-3)
    once.update(0)
    first_moments = [state["exp_avg"] for state in once.optimizer.state.values()]
    # After one update the first moment is (1 - beta) times the gradient.
    norm = sum(moment.double().square().sum() for moment in first_moments).sqrt() / (1 - once.config.betas[0])
    assert norm.item() == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize("where", ["loss", "gradient's norm"])
def test_what_is_no_number_is_refused_before_anything_changes(trainer, where):
    once = trainer()
    weight = once.model.embedding.weight
    if where == "loss":
        once.model.register_forward_hook(lambda m, i, out: out._replace(logits=out.logits * float("nan")))
    else:
        weight.register_hook(lambda gradient: gradient * float("nan"))
    before = weight.detach().clone()
    with pytest.raises(NonFiniteLossError, match=f"the {where} is nan at step 5"):
        once.update(4)
    assert torch.equal(weight, before) and not once.optimizer.state


def test_a_check_refuses_what_the_next_update_would_and_changes_nothing(trainer):
    once = trainer()
    once.update(0)
    before = [parameter.detach().clone() for parameter in once.model.parameters()]
    once.check(1)
    with torch.no_grad():
        once.model.norm.weight[3] = float("inf")
    for refused in (once.check, once.update):
        with pytest.raises(NonFiniteLossError, match="the loss is nan at step 2"):
            refused(1)
    once.model.norm.weight.data[3] = before[-1][3]
    assert all(torch.equal(*pair) for pair in zip(before, once.model.parameters(), strict=True))


def test_an_update_does_not_depend_on_the_random_numbers_before_it(trainer):
    def add_noise(module, arguments, output):
        return output._replace(logits=output.logits + torch.rand_like(output.logits))

    def loss(seed: int, step: int) -> float:
        torch.manual_seed(0)
        once = trainer(lr=1e-9)
        once.model.register_forward_hook(add_noise)
        torch.manual_seed(seed)
        return once.update(step).loss

    assert loss(1, 3) == loss(2, 3)
    assert loss(1, 3) != loss(1, 4)
