"""A language model's logits and state don't depend on how a text is cut, packed, padded or computed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lavagna as lv

NAMES = lv.layers.names()
HYBRID = ["gated_delta_net", "mamba2", "softmax_attention"]
LAYERS = [*NAMES, HYBRID]
VOCAB = 13


def build(layer, *, dtype=torch.float64, device="cpu", depth=None, **changed):
    depth = depth or (len(layer) if isinstance(layer, list) else 2)
    config = lv.ModelConfig(layer=layer, **({"d_model": 32, "depth": depth, "vocab_size": VOCAB} | changed))
    return lv.LanguageModel(config).to(device, dtype)


def text(*shape, device="cpu"):
    return torch.randint(VOCAB, shape, device=device)


def close(ours, wanted, tolerance=1e-10):
    return (ours - wanted).abs().max() <= tolerance * wanted.abs().max()


def same_state(ours, wanted, tolerance=1e-10):
    pairs = zip(ours.tensors().values(), wanted.tensors().values(), strict=True)
    return all(a.shape == b.shape and (not a.numel() or close(a, b, tolerance)) for a, b in pairs)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("cut", [(5, 1, 7, 2, 1), (1,) * 16, (15, 1), (3, 13), (0, 16)], ids=str)
def test_a_cut_text_gives_the_logits_and_state_of_the_whole(layer, cut, device):
    model, ids = build(layer, device=device), text(2, 16, device=device)
    logits, state = model(ids)
    parts, carried = [], None
    for piece in ids.split(cut, 1):
        part, carried = model(piece, carried)
        parts.append(part)
    assert close(torch.cat(parts, 1), logits)
    assert same_state(carried, state)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("form", ["recurrent", "scan", "chunkwise", "parallel"])
def test_every_form_gives_the_same_logits(layer, form, device):
    model, ids = build(layer, device=device), text(2, 9, device=device)
    if form not in {name for block in model.blocks for name in block.mixer.forms}:
        with pytest.raises(ValueError, match=f"form must be one of .* but came as '{form}'"):
            model(ids, form=form)
    else:
        assert close(model(ids, form=form).logits, model(ids).logits)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_left_padding_changes_nothing(layer, dtype, device):
    model, ids = build(layer, device=device), text(2, 6, device=device)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1, 1, 1, 1, 1, 1]], device=device).to(dtype)
    logits, state = model(ids, mask=mask)
    for row, start in ((0, 3), (1, 0)):
        alone, own = model(ids[row : row + 1, start:])
        assert close(logits[row, start:], alone[0])
        assert state.tokens_seen[row] == own.tokens_seen[0]


@given(data=st.data(), layer=st.sampled_from([*NAMES, tuple(HYBRID)]))
def test_ids_under_the_mask_change_nothing(data, layer):
    model = build(list(layer) if isinstance(layer, tuple) else layer)
    mask = torch.tensor(data.draw(st.lists(st.lists(st.booleans(), min_size=7, max_size=7), min_size=2, max_size=2)))
    ids = text(2, 7)
    odd = torch.where(mask, ids, torch.tensor(data.draw(st.sampled_from([-100, 0, VOCAB - 1, 10**9]))))
    (logits, state), (again, state_again) = model(ids, mask=mask), model(odd, mask=mask)
    assert torch.equal(logits, again) and logits.isfinite().all()
    assert all(torch.equal(a, state_again.tensors()[name]) for name, a in state.tensors().items())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32])
def test_ids_of_any_integer_dtype_are_the_same_ids(dtype, device):
    model, ids, mask = build("gla", device=device), text(2, 6, device=device), torch.eye(2, 6, device=device) == 0
    assert torch.equal(model(ids.to(dtype)).logits, model(ids).logits)
    assert torch.equal(model(ids.to(dtype), mask=mask).logits, model(ids, mask=mask).logits)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_texts_do_not_see_each_other(layer, checkpointing, device):
    model, ids = build(layer, device=device), text(1, 8, device=device)
    model.checkpointing = checkpointing
    results = []
    for first in (ids[:, :3], (ids[:, :3] + 1) % VOCAB):
        model.zero_grad()
        logits, state = model(torch.cat([first, ids[:, 3:]], 1), cu_seqlens=[0, 3, 8])
        logits[:, 3:].square().sum().backward()
        gradients = [x.grad for x in model.blocks.parameters()]
        results.append([logits[:, 3:], *(x[1] for x in state.tensors().values() if x.shape[1:] != (3,)), *gradients])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert close(results[0][0], model(ids[:, 3:]).logits)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_mask_and_offsets_both_hold(layer, device):
    model, ids = build(layer, device=device), text(1, 8, device=device)
    mask = torch.tensor([[1, 0, 1, 1, 1, 1, 0, 1]], device=device).bool()
    logits, state = model(ids, mask=mask, cu_seqlens=torch.tensor([0, 3, 8], device=device))
    for row, real in enumerate(([0, 2], [3, 4, 5, 7])):
        alone, own = model(ids[:, real])
        assert close(logits[:, real], alone)
        assert state.tokens_seen[row] == own.tokens_seen[0]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_rows_of_a_state_can_be_reordered_and_go_their_own_ways(layer, device):
    model, ids, more = build(layer, device=device), text(3, 6, device=device), text(3, 5, device=device)
    beams = model(ids).state.select([2, 0, 0])
    logits, _ = model(more, beams)
    for row, source in enumerate((2, 0, 0)):
        whole = torch.cat([ids[source], more[row]])[None]
        assert close(logits[row], model(whole).logits[0, 6:])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_saved_state_goes_on_bit_for_bit(layer, tmp_path, device):
    model, ids = build(layer, device=device), text(2, 9, device=device)
    _, snapshot = model(ids[:, :5])
    wanted, _ = model(ids[:, 5:], snapshot)
    snapshot.save(tmp_path / "state")
    model(text(2, 4, device=device), snapshot)
    again, _ = model(ids[:, 5:], lv.load_state(tmp_path / "state", device=device))
    assert torch.equal(again, wanted)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda m: m(torch.tensor([[3, VOCAB]])), "id 13 is beyond the vocabulary of 13"),
        (lambda m: m(torch.tensor([[-1]])), "id -1 is beyond the vocabulary of 13"),
        (lambda m: m(torch.zeros(2, 3)), r"ids must be integers \(b, t\), but came as torch.float32 \(2, 3\)"),
        (lambda m: m(torch.zeros(3, dtype=torch.int64)), r"but came as torch.int64 \(3,\)"),
        (lambda m: m(text(1, 3), mask=torch.ones(1, 4)), r"mask must be a tensor \(b, t\) = \(1, 3\)"),
        (lambda m: m(text(2, 8), cu_seqlens=[0, 8, 16]), "b must be 1"),
        (lambda m: m(text(1, 3), form="fast"), "form must be one of recurrent, scan, chunkwise, parallel or auto"),
        (lambda m: m(text(1, 3), backend="cuda"), "backend must be one of"),
        (lambda m: m(text(1, 3), build("gla", depth=3).initial_state(1)), "with 2 blocks, but came as 3 blocks"),
        (lambda m: m(text(2, 3), m.initial_state(1)), "the state has 1 rows, but the call has 2"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_one_line(call, said):
    with pytest.raises(ValueError, match=said) as caught:
        call(build("gla", dtype=torch.float32))
    assert "\n" not in str(caught.value)


def test_ids_beyond_a_padded_vocabulary_name_its_rows():
    with pytest.raises(ValueError, match=r"id 300 is beyond the vocabulary of 277 \(280 with padding\)"):
        build("gla", vocab_size=277, vocab_multiple=8)(torch.tensor([[300]]))


def test_a_layer_that_reads_both_ways_is_refused_because_it_sees_what_is_to_be_predicted():
    with pytest.raises(ValueError, match="block 1 is a bidirectional s4d, which sees the ids"):
        build(["gla", "s4d"], options={"s4d": {"bidirectional": True}})


def test_a_misspelt_keyword_is_a_type_error():
    with pytest.raises(TypeError, match="cu_seqlen"):
        build("gla", dtype=torch.float32)(text(1, 3), cu_seqlen=[0, 3])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_ids_of_any_integer_type_are_taken(dtype):
    model, ids = build("gla"), text(1, 5)
    assert torch.equal(model(ids.to(dtype)).logits, model(ids).logits)


@pytest.mark.parametrize("layer", ["gla", "rwkv4", "rwkv5", "rwkv6", "rwkv7"])
def test_it_takes_parameters_of_a_functional_call(layer, device):
    model = lv.LanguageModel(lv.ModelConfig(layer, d_model=32, depth=1, vocab_size=64)).to(device)
    ids = torch.tensor([[1, 2, 3]], device=device)
    values = {name: x.detach() for name, x in model.named_parameters()}
    called = torch.func.functional_call(model, values, (ids,)).logits
    assert torch.equal(called, model(ids).logits)
