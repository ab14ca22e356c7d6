"""Gradients of a language model: all there, through states and cuts, and the same with checkpointing."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import lavagna as lv

HYBRID = ["gated_delta_net", "mamba2", "softmax_attention"]
LAYERS = [*lv.layers.names(), HYBRID]
VOCAB = 13


def build(layer, *, dtype=torch.float64, device="cpu", **changed):
    depth = len(layer) if isinstance(layer, list) else 2
    config = lv.ModelConfig(layer=layer, **({"d_model": 32, "depth": depth, "vocab_size": VOCAB} | changed))
    return lv.LanguageModel(config).to(device, dtype)


def text(*shape, device="cpu"):
    return torch.randint(VOCAB, shape, device=device)


def loss(logits, ids):
    """Cross entropy of each id as its own answer: any fixed targets will do."""
    return cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def gradients(model):
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return found


def close(ours, wanted, tolerance):
    scale = max(x.abs().max() for x in wanted.values())
    return all((ours[name] - x).abs().max() <= tolerance * scale for name, x in wanted.items())


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("length", [1, 9])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_parameter_gets_a_gradient(layer, length, tied, device):
    model, ids = build(layer, device=device, tie_embeddings=tied), text(2, length, device=device)
    loss(model(ids).logits, ids).backward()
    missing = [name for name, x in model.named_parameters() if x.grad is None]
    assert not missing
    assert all(x.grad.isfinite().all() for x in model.parameters())


@pytest.mark.parametrize("case", ["plain", "packed", "state", "mask", "autocast"])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_checkpointing_changes_no_bit_of_loss_or_gradient(layer, case, device):
    model, ids = build(layer, dtype=torch.float32, device=device), text(1, 33, device=device)
    options = {
        "packed": {"cu_seqlens": [0, 10, 33]},
        "state": {"state": model(text(1, 5, device=device)).state.detach()},
        "mask": {"mask": torch.rand(1, 33, device=device) < 0.7},
    }.get(case, {})
    results = []
    for checkpointing in (False, True):
        model.checkpointing = checkpointing
        with torch.autocast(device.type, torch.bfloat16, enabled=case == "autocast"):
            logits, state = model(ids, **options)
        value = loss(logits, ids)
        value.backward()
        results.append({"loss": value.detach(), **state.detach().tensors(), **gradients(model)})
    assert all(torch.equal(x, results[1][name]) for name, x in results[0].items())


def test_checkpointing_keeps_less_for_the_backward_pass():
    model, ids, kept = build("gla"), text(2, 64), {}
    for model.checkpointing in (False, True):
        storages = {}

        def note(tensor, storages=storages):
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(ids)
        kept[model.checkpointing] = sum(storages.values())
    assert kept[True] < kept[False] / 3


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("cut", [(5, 5, 5), (1,) * 8], ids=str)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.sampled(3)
def test_gradients_through_carried_states_are_those_of_one_call(layer, cut, device):
    model, ids = build(layer, device=device), text(2, sum(cut), device=device)
    model(ids).logits.square().sum().backward()
    wanted = gradients(model)
    total, state, older = 0, None, []
    with torch.autograd.detect_anomaly(check_nan=True):
        for piece in ids.split(cut, 1):
            logits, state = model(piece, state)
            older.append((state, {name: x.detach().clone() for name, x in state.tensors().items()}))
            total = total + logits.square().sum()
        total.backward()
    assert close(gradients(model), wanted, 1e-9)
    assert all(torch.equal(x.tensors()[name], copy) for x, copies in older for name, copy in copies.items())


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_detached_state_is_truncated_back_propagation(layer, device):
    """Each segment's gradients are those of a call that starts from the numbers of the state, with no way back."""
    model, state, segments = build(layer, device=device), None, text(3, 2, 5, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for ids in segments:
        frozen = None if state is None else state.detach().clone()
        logits, after = model(ids, frozen)
        logits.square().mean().backward()
        wanted = gradients(model)
        logits, after = model(ids, None if state is None else state.detach())
        logits.square().mean().backward()
        assert close({name: x.grad for name, x in model.named_parameters()}, wanted, 1e-12)
        optimizer.step()
        optimizer.zero_grad()
        state = after


@pytest.mark.parametrize("layer", lv.layers.names())
def test_a_loss_on_the_final_state_reaches_the_parameters_and_the_state_before(layer, device):
    model = build(layer, device=device, depth=1)
    with torch.no_grad():
        # Off their first values, some of which are zero and let no gradient through (sLSTM's mixing).
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    start = model(text(2, 3, device=device)).state.detach()
    floating = {name: x.requires_grad_() for name, x in start.tensors().items() if x.is_floating_point()}
    state = model(text(2, 4, device=device), start.replace(**floating)).state
    sum(x.square().sum() for x in state.tensors().values() if x.is_floating_point()).backward()
    # A convolution's window is replaced whole by four new tokens, so only memories lead back.
    memories = [x for name, x in floating.items() if "window" not in name]
    assert all(x.grad is not None and x.grad.abs().max() > 0 for x in memories)
    assert model.embedding.weight.grad.abs().max() > 0
