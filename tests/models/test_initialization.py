"""Every way of building a model gives the same values, in the ranges that the papers give."""

import copy

import pytest
import torch

import lavagna as lv

LAYERS = [*lv.layers.names(), ["gated_delta_net", "mamba2", "softmax_attention"]]


def config(layer, **changed):
    depth = len(layer) if isinstance(layer, list) else 2
    return lv.ModelConfig(layer=layer, **({"d_model": 32, "depth": depth, "vocab_size": 13} | changed))


def equal(one, other):
    one, other = one.state_dict(), other.state_dict()
    return one.keys() == other.keys() and all(torch.equal(x, other[name]) for name, x in one.items())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_build_equals_a_meta_build_emptied_and_reset_with_the_same_seed(layer, tied, device):
    with torch.device(device):
        torch.manual_seed(3)
        normal = lv.LanguageModel(config(layer, tie_embeddings=tied))
    with torch.device("meta"):
        late = lv.LanguageModel(config(layer, tie_embeddings=tied))
    late.to_empty(device=device)
    with torch.no_grad():
        for tensor in [*late.parameters(), *late.buffers()]:
            tensor.fill_(torch.nan)
    torch.manual_seed(3)
    late.reset_parameters()
    assert equal(normal, late)
    assert all(tensor.isfinite().all() for tensor in [*late.parameters(), *late.buffers()])


def test_under_the_meta_device_nothing_is_allocated():
    with torch.device("meta"):
        model = lv.LanguageModel(config("gla", vocab_size=10**9, d_model=4096))
    assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_parameters_spared_by_weight_decay_keep_their_mark_through_a_meta_build(layer):
    with torch.device("meta"):
        late = lv.LanguageModel(config(layer))
    late.to_empty(device="cpu").reset_parameters()

    def marked(model):
        return [name for name, x in model.named_parameters() if getattr(x, "no_weight_decay", False)]

    assert marked(late) == marked(lv.LanguageModel(config(layer))) != []


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_reset_draws_the_same_values_from_the_same_seed(layer):
    model = lv.LanguageModel(config(layer))
    torch.manual_seed(5)
    model.reset_parameters()
    once = copy.deepcopy(model)
    torch.manual_seed(5)
    model.reset_parameters()
    assert equal(once, model)


def test_embedding_and_head_are_normal_with_deviation_two_hundredths():
    model = lv.LanguageModel(config("gla", vocab_size=4000, tie_embeddings=False))
    for weight in (model.embedding.weight, model.head.weight):
        assert weight.std().item() == pytest.approx(0.02, rel=0.01)
        assert abs(weight.mean().item()) < 2e-4


@pytest.mark.parametrize("layer", ["linear_attention", "delta_net"])
def test_what_is_added_to_the_stream_starts_smaller_in_a_deeper_model(layer):
    torch.manual_seed(7)
    shallow = lv.LanguageModel(config(layer, depth=1))
    torch.manual_seed(7)
    deep = lv.LanguageModel(config(layer, depth=9))
    for part in ("mixer.out", "mlp.down"):
        ratio = shallow.blocks[0].get_submodule(part).weight / deep.blocks[0].get_submodule(part).weight
        assert torch.allclose(ratio, torch.tensor(3.0))


def test_a_mamba2_block_has_no_mlp_and_others_have_one_unless_asked():
    assert lv.LanguageModel(config("mamba2")).blocks[0].mlp is None
    assert lv.LanguageModel(config("gla")).blocks[0].mlp.hidden == 96
    assert lv.LanguageModel(config("mamba2", mlp_factor=2)).blocks[0].mlp.hidden == 64
    assert lv.LanguageModel(config("gla", mlp_factor=0)).blocks[0].mlp is None
