"""A batch of prompts of unlike length says what each prompt says alone."""

import pytest
import torch

import lavagna as lv

LAYERS = [*lv.layers.names(), ["gated_delta_net", "mamba2", "softmax_attention"]]
VOCAB, EOS = 50, 7


def build(layer, device):
    """A model whose convolutions, where it has any, turn silence into something."""
    depth = len(layer) if isinstance(layer, list) else 2
    model = lv.LanguageModel(lv.ModelConfig(layer=layer, d_model=32, depth=depth, vocab_size=VOCAB)).to(device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("conv.bias"):
                parameter.fill_(0.5)
    return model


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.sampled(3)
@torch.no_grad()
def test_prompts_of_three_and_six_ids_go_on_as_alone_whatever_pads_them(layer, device):
    model, ids = build(layer, device), torch.randint(VOCAB, (2, 6), device=device)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6], device=device)
    seen = []
    for pad in (EOS, VOCAB - 1):
        padded = ids.masked_fill(mask == 0, pad)
        new = lv.generate(model, padded, max_new_tokens=10, mask=mask, temperature=0).ids[:, 6:]
        logits, state = model(padded, mask=mask)
        seen.append([new, logits, *state.tensors().values()])
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))
    for row, own in enumerate([ids[:1, 3:], ids[1:]]):
        right, last = model(own)
        assert (logits[row, -own.shape[1] :] - right[0]).abs().max() < 1e-5 * right.abs().max()
        for name, tensor in last.tensors().items():
            # A cache is as long as the longest row.
            if name.rpartition(".")[2] not in ("keys", "values", "inputs"):
                assert torch.allclose(state.tensors()[name][row], tensor[0], rtol=0, atol=1e-5)
        greedy = lv.generate(model, own, max_new_tokens=10, temperature=0).ids[0, own.shape[1] :]
        assert torch.equal(new[row], greedy)
