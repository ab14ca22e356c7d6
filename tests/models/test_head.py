"""A tied head is the embedding, whatever becomes of the model."""

import copy

import torch

import lavagna as lv


def build(**changed):
    return lv.LanguageModel(lv.ModelConfig(layer="gla", d_model=32, depth=1, vocab_size=13, **changed))


def test_a_tied_head_is_the_embedding_after_casts_copies_and_meta_builds():
    with torch.device("meta"):
        late = build()
    for model in (build(), build().double(), copy.deepcopy(build()), late.to_empty(device="cpu")):
        assert model.head.weight is model.embedding.weight


def test_a_copy_of_a_tied_model_stands_alone():
    model = build()
    twin = copy.deepcopy(model)
    assert twin.head.weight is not model.embedding.weight


def test_a_tied_matrix_is_listed_once():
    model = build()
    listed = [name for name, weight in model.named_parameters(remove_duplicate=False) if weight.shape == (13, 32)]
    assert listed == ["embedding.weight"] and "head.weight" not in model.state_dict()


def test_an_untied_head_is_a_parameter_of_its_own():
    model = build(tie_embeddings=False)
    assert model.head.weight is not model.embedding.weight
    assert "head.weight" in model.state_dict()
