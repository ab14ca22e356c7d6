"""Models of RWKV: two windows a block, a first value that is handed on, norms as published."""

import pytest
import torch

import lavagna as lv

VERSIONS = ["rwkv4", "rwkv5", "rwkv6", "rwkv7"]
every = pytest.mark.parametrize("name", VERSIONS)


def model_of(name, device, depth=2):
    model = lv.LanguageModel(lv.ModelConfig(layer=name, d_model=16, depth=depth, vocab_size=11))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model.to(device, torch.float64)


def same(state, other):
    return all(torch.allclose(x, other.tensors()[name], atol=1e-11) for name, x in state.tensors().items())


@every
def test_a_block_is_as_published(name):
    model = lv.LanguageModel(lv.ModelConfig(layer=name, d_model=64, depth=1, vocab_size=11))
    block = model.blocks[0]
    norms = (model.embedding_norm, block.mixer_norm, block.mlp_norm, model.norm)
    assert all(norm.weight.shape == norm.bias.shape == (64,) and norm.eps == 1e-5 for norm in norms)
    assert block.mlp.key.weight.shape == ({"rwkv5": 224, "rwkv6": 224}.get(name, 256), 64)
    assert (block.mlp.receptance is None) == (name == "rwkv7")
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@every
def test_windows_and_memories_are_right_however_a_text_is_cut_padded_or_packed(name, device):
    model, ids = model_of(name, device), torch.randint(11, (1, 9), device=device)
    whole, end = model(ids)
    assert {"window", "mlp_window"} <= end[0].tensors().keys()
    for cut in (1, 4):
        first, middle = model(ids[:, :cut])
        second, last = model(ids[:, cut:], middle)
        assert torch.allclose(torch.cat([first, second], 1), whole, atol=1e-11) and same(last, end)
    for holes in ([0, 1], [4, 6], [9, 10]):  # left, inside, right
        mask = torch.ones(1, 11, device=device, dtype=torch.bool)
        mask[0, holes] = False
        padded = torch.full((1, 11), 7, device=device)
        padded[mask] = ids[0]
        logits, last = model(padded, mask=mask)
        assert torch.allclose(logits[mask], whole[0], atol=1e-11) and same(last, end)
    packed, last = model(torch.cat([ids[:, :4], ids], 1), cu_seqlens=[0, 4, 13])
    assert torch.allclose(packed, torch.cat([whole[:, :4], whole], 1), atol=1e-11)
    assert same(last.select([1]), end) and same(last.select([0]), model(ids[:, :4]).state)


def to_the_first_value(model, ids, *, open_at, checkpointing):
    """The gradient of the first layer's values where it reaches the logits through the layers `open_at` alone."""
    model.checkpointing = checkpointing
    model.zero_grad()
    with torch.no_grad():
        model.blocks[0].mixer.out.weight.zero_()
        for index, block in enumerate(model.blocks):
            if index:
                block.mixer.v0.fill_(0.3 if index in open_at else -1e6)
                block.mixer.residual.up.weight.zero_()
    model(ids).logits.square().sum().backward()
    return model.blocks[0].mixer.value.weight.grad.clone()


def test_gradients_reach_the_first_value_from_every_later_layer_also_with_checkpointing(device):
    model, ids = model_of("rwkv7", device, depth=4), torch.randint(11, (2, 7), device=device)
    found = []
    for open_at in ([1], [2], [3], [1, 2, 3], []):
        plain, again = (to_the_first_value(model, ids, open_at=open_at, checkpointing=on) for on in (False, True))
        assert torch.equal(plain, again) and plain.any() == bool(open_at)
        found.append(plain)
    assert all(not torch.allclose(x, found[3], rtol=1e-3) for x in found[:3])


def test_the_first_layer_of_a_hybrid_s_kind_has_no_value_to_mix_in():
    config = lv.ModelConfig(layer=["gla", "rwkv7"], d_model=16, depth=4, vocab_size=11)
    mixers = [block.mixer for block in lv.LanguageModel(config).blocks]
    assert mixers[1].v0 is None and mixers[1].residual is None and mixers[3].v0 is not None


@every
def test_text_that_is_generated_step_by_step_is_that_of_one_pass(name, device):
    model, ids = model_of(name, device), torch.randint(11, (2, 8), device=device)
    whole, end = model(ids)
    state, logits = None, []
    for one in ids.split(1, 1):
        step, state = model(one, state)
        logits.append(step)
    assert torch.allclose(torch.cat(logits, 1), whole, atol=1e-11) and same(state, end)
