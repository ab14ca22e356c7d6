"""Which parameters weight decay may shrink."""

import copy

import pytest
import torch
from torch import nn

from lavagna.layers import registry
from lavagna.models import LanguageModel, ModelConfig
from lavagna.training import parameter_groups

SPARED_NAMES = ("A_log", "D", "dt_bias", "bias")
# Of the mixers made of state spaces, what is a matrix or a convolution's kernel: all else is dynamics, bias or norm.
DECAYED = {
    **dict.fromkeys(["lssl", "s4", "dss", "s4d", "s5"], {"out"}),
    "h3": {"qkv", "shift", "out"},
    "hyena": {"inputs", "conv", "out"},
    "mamba": {"x", "gate", "conv", "sbc", "step", "out"},
    "mamba2": {"gate", "xbc", "step", "conv", "out"},
    "mamba3": {"x", "gate", "bc", "dynamics", "out"},
    "lstm": {"gates", "recurrent", "out"},
}


def language_model(layer: str, device: torch.device, **settings) -> LanguageModel:
    return LanguageModel(ModelConfig(layer=layer, d_model=32, depth=1, vocab_size=50, **settings)).to(device)


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("layer", registry.names())
def test_every_parameter_is_in_exactly_one_group(layer, tied, device):
    model = language_model(layer, device, tie_embeddings=tied)
    groups = parameter_groups(model, 0.1)
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())
    by_name = dict(model.named_parameters())
    for group in groups:
        assert [id(by_name[name]) for name in group["names"]] == [id(parameter) for parameter in group["params"]]


@pytest.mark.parametrize("layer", registry.names())
def test_vectors_norms_embeddings_and_what_a_layer_marks_are_spared(layer, device):
    model = language_model(layer, device)
    decayed, spared = parameter_groups(model, 0.1)
    for name, parameter in model.named_parameters():
        marked = getattr(parameter, "no_weight_decay", False) or name.split(".")[-1] in SPARED_NAMES
        if parameter.ndim <= 1 or "norm" in name or "embedding" in name or marked:
            assert name in spared["names"] and name not in decayed["names"]
    assert any("mixer" in name for name in decayed["names"])


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"tied": False}, {"rank": 2}], ids=str)
@pytest.mark.parametrize("layer", DECAYED)
def test_of_a_state_space_only_matrices_and_kernels_are_decayed(layer, options):
    if options.keys() - registry.options(layer).keys():
        pytest.skip("the layer has no such option")
    decayed, _ = parameter_groups(registry.build(layer, 32, **options), 0.1)
    assert {name.removesuffix(".weight") for name in decayed["names"]} == DECAYED[layer]


@pytest.mark.parametrize("layer", registry.names())
def test_without_gradients_only_matrices_shrink_and_just_as_far_as_decay_says(layer, device):
    model = language_model(layer, device)
    decayed, spared = parameter_groups(model, 0.1)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.AdamW([decayed, spared], lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(100):
        optimizer.step()
    for name, parameter in zip(decayed["names"], decayed["params"], strict=True):
        torch.testing.assert_close(parameter.detach(), 0.99**100 * before[name], rtol=1e-4, atol=0)
    for name, parameter in zip(spared["names"], spared["params"], strict=True):
        assert torch.equal(parameter, before[name]), name


def test_a_matrix_tied_to_an_embedding_is_spared_wherever_it_comes_first():
    head, embedding = nn.Linear(4, 9, bias=False), nn.Embedding(9, 4)
    head.weight = embedding.weight
    decayed, spared = parameter_groups(nn.Sequential(head, embedding), 0.1)
    assert decayed["names"] == [] and spared["names"] == ["0.weight"]


def test_frozen_parameters_are_in_no_group():
    model = nn.Linear(3, 3)
    model.weight.requires_grad = False
    decayed, spared = parameter_groups(model, 0.1)
    assert decayed["names"] == [] and spared["names"] == ["bias"]


def test_a_negative_decay_is_refused():
    with pytest.raises(ValueError, match=r"weight_decay came as -0.1, but 0 or more"):
        parameter_groups(nn.Linear(2, 2), -0.1)


@pytest.mark.parametrize("layer", registry.names())
def test_a_copy_of_a_model_has_the_same_groups(layer, device):
    model = language_model(layer, device)
    once, again = (parameter_groups(one, 0.1) for one in (model, copy.deepcopy(model)))
    assert [group["names"] for group in once] == [group["names"] for group in again]
