"""The numbers behind the figures."""

import pytest
import torch

from lavagna import LanguageModel, ModelConfig, recur
from lavagna.plots import forms, recall, state, zoo
from lavagna.plots.recording import SNAPSHOTS, record, snapshots
from lavagna.reproduce.recall import PUBLISHED
from plots.stand_in import StandIn


def test_a_square_of_the_zoo_is_what_one_step_leaves_of_a_memory(device):
    channels = zoo.CHANNELS
    for rung in zoo.ladder():
        a = rung.transition.map(lambda part: part.to(device))
        memory = torch.eye(channels, dtype=torch.float64, device=device)[None, None]
        nothing = torch.zeros(1, 1, 1, channels, dtype=torch.float64, device=device)
        left = recur(a, nothing, nothing, nothing, memory).state[0, 0]
        # A transition without parts is on no device of its own.
        assert torch.allclose(left.abs().cpu(), zoo.survives(a).cpu(), rtol=0, atol=1e-12)


def test_the_ladder_climbs_from_one_diagonal_to_all_entries():
    squares = [zoo.survives(rung.transition) for rung in zoo.ladder()]
    off = [square - square.diag().diag() for square in squares]
    assert [bool(rest.any()) for rest in off] == [False, False, False, True, True, True]
    assert [len(square.diag().unique()) for square in squares[:3]] == [1, 1, zoo.CHANNELS]
    assert all(square.max() <= 1 for square in squares)


def test_the_erased_key_is_gone_from_the_memory_of_the_delta_rule():
    factor = zoo.matrix(zoo.ladder()[3].transition, zoo.CHANNELS, 0, 0, 0)
    key = torch.tensor(zoo.KEY, dtype=torch.float64)
    assert (factor @ key).abs().max() < 1e-12


def test_the_triangle_holds_weight_times_value_and_its_rows_sum_to_the_totals():
    parts = forms.shares(torch.tensor([6.0, 7.0, 8.0], dtype=torch.float64))
    assert torch.allclose(parts, parts.new_tensor([[6, 0, 0], [3, 7, 0], [1.5, 3.5, 8]]), rtol=0, atol=1e-12)
    assert torch.allclose(parts.sum(1), parts.new_tensor([6, 10, 13]), rtol=0, atol=1e-12)


def test_blocks_of_two_pass_on_ten_and_no_more():
    first, second = forms.blocks(torch.tensor([6.0, 7.0, 8.0], dtype=torch.float64), 2)
    assert first.carry.tolist() == [0, 0] and first.totals.tolist() == pytest.approx([6, 10])
    assert second.carry.tolist() == pytest.approx([5]) and second.totals.tolist() == pytest.approx([13])
    assert second.first == 2 and second.shares.tolist() == [[8]]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_the_carry_and_the_triangle_of_a_block_make_its_totals(chunk):
    values = torch.randn(7, dtype=torch.float64)
    found = forms.blocks(values, chunk)
    for block in found:
        assert torch.allclose(block.shares.sum(1) + block.carry, block.totals, rtol=0, atol=1e-12)
    assert torch.allclose(torch.cat([block.totals for block in found]), forms.totals(values, 0.5), rtol=0, atol=1e-12)


def test_curves_of_recall_carry_the_published_points_and_the_sum_lies_above():
    found = recall.curves(trials=50)
    for (quantity, rule), curve in found.items():
        place = recall.QUANTITIES.index(quantity)
        assert dict(curve.published) == {pairs: PUBLISHED[rule, pairs][place] for pairs in (8, 16, 32)}
        for pairs, error in curve.published:
            assert curve.error[curve.pairs.index(pairs)] == pytest.approx(error, abs=0.12)
    for quantity in recall.QUANTITIES:
        above, below = found[quantity, "sum"].error, found[quantity, "delta"].error
        assert all(x > y for x, y in zip(above[1:], below[1:], strict=True))


@pytest.mark.parametrize("text", ["abcab", "a text of more tokens than are shown"])
def test_a_recording_is_the_state_after_each_token(text, device):
    model = StandIn().to(device)
    found = record(model, text, head=1)
    ids = torch.tensor([list(text.encode())], device=device)
    wanted = [model(ids[:, : t + 1])[1][0].memory[0, 1].double().cpu() for t in range(len(text))]
    assert found.ids == list(text.encode()) and found.shown == snapshots(len(text))
    for memory, t in zip(found.memory, found.shown, strict=True):
        assert torch.allclose(memory, wanted[t], rtol=0, atol=1e-5)
    before = [torch.zeros_like(wanted[0]), *wanted[:-1]]
    for t in range(len(text)):
        assert found.norm[t].item() == pytest.approx(wanted[t].norm().item(), abs=1e-5)
        assert found.change[t].item() == pytest.approx((wanted[t] - before[t]).norm().item(), abs=1e-5)


@pytest.mark.parametrize("layer", ["retention", "gated_delta_net", ["softmax_attention", "gla"]])
def test_a_language_model_is_recorded_as_it_runs(layer):
    model = LanguageModel(ModelConfig(layer=layer, d_model=32, depth=2, vocab_size=256))
    found = record(model, "a memory", block=1)
    ids = torch.tensor([list(b"a memory")])
    whole = model(ids)[1][1]
    assert found.layer == whole.kind
    assert torch.allclose(found.memory[-1], whole.memory[0, 0].double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "words"), [("s4d", "32 heads (down) by 4 complex"), ("mamba", "64 heads (down) by 16")]
)
def test_heads_of_a_single_row_are_recorded_together_and_complex_numbers_as_two(layer, words):
    options = {"d_state": 8} if layer == "s4d" else {}
    model = LanguageModel(ModelConfig(layer=layer, d_model=32, depth=1, vocab_size=256, options=options))
    found = record(model, "a memory")
    memory = model(torch.tensor([list(b"a memory")])).state[0].memory[0, :, 0].double()
    wanted = torch.cat(memory.unbind(-1), -1) if layer == "s4d" else memory
    assert torch.allclose(found.memory[-1], wanted, rtol=0, atol=1e-5) and found.axes.startswith(words)


@pytest.mark.parametrize("training", [True, False])
def test_recording_leaves_the_model_as_it_was(training):
    model = StandIn().train(training)
    before = [parameter.clone() for parameter in model.parameters()]
    assert not record(model, "ab").memory.requires_grad
    assert model.training is training
    assert all(torch.equal(x, y) for x, y in zip(before, model.parameters(), strict=True))
    with pytest.raises(ValueError, match="head"):
        record(model, "ab", head=9)
    assert model.training is training


@pytest.mark.parametrize(
    ("token", "shown"),
    [(" a", "␣a"), ("\n", "⏎"), ("\x00", "□"), ("語", "□"), ("$x$", "$x$"), ("abcdefghi", "abcdefg…")],
)
def test_tokens_are_shown_so_that_nothing_is_invisible(token, shown):
    assert state.visible(token) == shown


@pytest.mark.parametrize("steps", [1, 2, 9, 10, 11, 41, 1000])
def test_snapshots_are_few_in_order_and_hold_both_ends(steps):
    shown = snapshots(steps)
    assert shown[0] == 0 and shown[-1] == steps - 1
    assert shown == sorted(set(shown)) and len(shown) == min(steps, SNAPSHOTS)
