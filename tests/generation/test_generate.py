"""Generating is what a loop of full forward passes does, at constant cost a token."""

import jaxtyping
import pytest
import torch

import lavagna as lv
from generation.scripted import Scripted
from lavagna.generation.prefill import prefill

LAYERS = [*lv.layers.names(), ["gated_delta_net", "mamba2", "softmax_attention"]]
VOCAB = 17


def build(layer="gated_delta_net", *, device="cpu", **changed):
    depth = len(layer) if isinstance(layer, list) else 2
    config = lv.ModelConfig(layer=layer, **({"d_model": 32, "depth": depth, "vocab_size": VOCAB} | changed))
    return lv.LanguageModel(config).to(device, torch.float64)


def text(*shape, device="cpu"):
    return torch.randint(VOCAB, shape, device=device)


@torch.no_grad()
def by_full_passes(model, ids, count):
    for _ in range(count):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    return ids


def greedy(model, ids, count, **options):
    return lv.generate(model, ids, max_new_tokens=count, temperature=0, **options)


def same_state(ours, wanted, rows=slice(None)):
    pairs = [(ours.tensors()[name][rows], x) for name, x in wanted.tensors().items()]
    return all(torch.allclose(a[:, : b.shape[1]] if a.ndim > 1 else a, b, atol=1e-9) for a, b in pairs)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 33])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.sampled(2)
def test_greedy_ids_are_those_of_full_passes(layer, length, rows, device):
    model, ids = build(layer, device=device), text(rows, length, device=device)
    assert torch.equal(greedy(model, ids, 12).ids, by_full_passes(model, ids, 12))


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_the_state_has_seen_every_id_but_the_last(layer, device):
    model, ids = build(layer, device=device), text(2, 5, device=device)
    for count in (0, 1, 6):
        out = greedy(model, ids, count)
        assert same_state(out.state, model(out.ids[:, :-1]).state)


@pytest.mark.parametrize("first", [0, 1, 5, 9])
@pytest.mark.parametrize("temperature", [0, 0.7])
def test_generation_goes_on_from_the_returned_state(first, temperature):
    model, ids = build("gla"), text(2, 4)
    options = {"temperature": temperature, "top_k": 1 if temperature else None}
    whole = lv.generate(model, ids, max_new_tokens=9, **options)
    out = lv.generate(model, ids, max_new_tokens=first, **options)
    rest = lv.generate(model, out.ids[:, -1:], state=out.state, max_new_tokens=9 - first, **options)
    assert torch.equal(torch.cat([out.ids, rest.ids[:, 1:]], 1), whole.ids)
    assert same_state(rest.state, whole.state)


def test_calls_repeat_bit_for_bit_and_do_not_touch_each_other():
    model, one, other = build(), text(1, 7), text(1, 5)
    first, between, again = greedy(model, one, 12), greedy(model, other, 12), greedy(model, one, 12)
    assert torch.equal(first.ids, again.ids)
    assert torch.equal(between.ids, greedy(model, other, 12).ids)
    assert all(torch.equal(x, again.state.tensors()[name]) for name, x in first.state.tensors().items())


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("padding", ["left", "right", "between"])
@pytest.mark.parametrize("pad", [0, VOCAB - 1, -100])
@pytest.mark.sampled(2)
def test_a_padded_row_goes_on_as_if_alone(layer, padding, pad, device):
    model, ids = build(layer, device=device), text(2, 6, device=device)
    real = {"left": [3, 4, 5], "right": [0, 1, 2], "between": [0, 2, 5]}[padding]
    mask = torch.ones(2, 6, dtype=torch.bool, device=device)
    mask[0] = False
    mask[0, real] = True
    out = greedy(model, ids.masked_fill(~mask, pad), 8, mask=mask)
    for row, own in ((0, ids[:1, real]), (1, ids[1:])):
        alone = greedy(model, own, 8)
        assert torch.equal(out.ids[row, 6:], alone.ids[0, own.shape[1] :])
        assert same_state(out.state, alone.state, slice(row, row + 1))


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_row_that_ended_is_filled_and_its_state_stands_still(layer, device):
    model, ids = build(layer, device=device), text(2, 4, device=device)
    plain = greedy(model, ids, 10).ids[:, 4:]
    ends = [plain[0, 1].item(), plain[1, 8].item()]
    out = greedy(model, ids, 30, eos=ends, pad=3)
    for row in range(2):
        alone = greedy(model, ids[row : row + 1], 30, eos=ends, pad=3)
        length = alone.ids.shape[1]
        assert alone.ids[0, -1] in ends
        assert torch.equal(out.ids[row, :length], alone.ids[0])
        assert (out.ids[row, length:] == 3).all()
        assert same_state(out.state, alone.state, slice(row, row + 1))
        assert out.state.tokens_seen[row] == length - 1
    assert out.ids.shape[1] == max(out.state.tokens_seen) + 1


def test_rows_end_at_their_own_steps():
    model = Scripted([0, 5, 6, 1, 5, 5, 6, 2, 9, 9, 9])
    assert greedy(model, torch.tensor([[7]]), 30, eos=1).ids.tolist() == [[7, 0, 5, 6, 1]]
    assert greedy(model, torch.tensor([[7]]), 30, eos=[2, 9]).ids.tolist() == [[7, 0, 5, 6, 1, 5, 5, 6, 2]]


def test_no_new_tokens_give_the_prompt_back():
    model, ids = build(), text(2, 5)
    out = greedy(model, ids, 0)
    assert torch.equal(out.ids, ids) and out.state.tokens_seen.tolist() == [4, 4]
    again = greedy(model, ids[:, -1:], 0, state=out.state)
    for name, x in out.state.tensors().items():
        assert torch.equal(again.state.tensors()[name], x) and again.state.tensors()[name] is not x


def test_a_token_costs_one_step():
    model = Scripted(range(20))
    greedy(model, torch.zeros(1, 8, dtype=torch.int64), 5)
    assert model.calls == [(1, 1)] * 5


@pytest.mark.parametrize("piece", [1, 5, 16, 100])
def test_a_prompt_read_in_pieces_gives_the_same_state(piece):
    model, ids = build(), text(2, 16)
    mask = torch.rand(2, 16) < 0.7
    assert same_state(prefill(model, ids, piece=piece), model(ids).state)
    assert same_state(prefill(model, ids, None, mask, piece=piece), model(ids, mask=mask).state)


def test_ids_stay_below_the_vocabulary_when_rows_are_padded():
    model = build(vocab_size=13, vocab_multiple=8, tie_embeddings=False)
    with torch.no_grad():
        model.head.weight[13:] = 100 * model.head.weight[:3]
    out = lv.generate(model, torch.zeros(8, 1, dtype=torch.int64), max_new_tokens=30, temperature=5.0, seed=0)
    assert out.ids.max() < 13


def test_the_same_seed_gives_the_same_ids():
    model, ids = build(), text(2, 4)
    runs = [lv.generate(model, ids, max_new_tokens=20, temperature=5.0, seed=seed).ids for seed in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_every_part_keeps_its_mode_even_when_generation_fails():
    model = build().train()
    model.blocks[0].eval()
    before = [part.training for part in model.modules()]
    greedy(model, text(1, 3), 2)
    with pytest.raises(ValueError, match="beyond the vocabulary"):
        greedy(model, torch.tensor([[VOCAB, 1]]), 2)
    assert [part.training for part in model.modules()] == before


def test_a_state_that_generation_returns_can_be_trained_from():
    model = build()
    out = greedy(model, text(2, 4), 3)
    model(out.ids[:, -1:], out.state).logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_it_works_in_inference_mode():
    model, ids = build(), text(2, 4)
    with torch.inference_mode():
        inside = greedy(model, ids, 5).ids
    assert torch.equal(inside, greedy(model, ids, 5).ids)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda m: greedy(m, text(1, 0), 3), "row 0 has no ids to go on from"),
        (lambda m: greedy(m, text(2, 3), 3, mask=torch.tensor([[1, 1, 1], [0, 0, 0]])), "row 1 has no ids"),
        (lambda m: greedy(m, torch.zeros(3), 3), r"ids must be integers \(b, t\)"),
        (lambda m: greedy(m, text(1, 3), -1), "max_new_tokens must be an int >= 0, but came as -1"),
        (lambda m: greedy(m, torch.tensor([[300]]), 3), "id 300 is beyond the vocabulary of 17"),
        (lambda m: lv.generate(m, text(1, 3), max_new_tokens=3, temperature=-1.0), "generate: temperature must be 0"),
        (lambda m: greedy(m, text(2, 3), 3, state=m.initial_state(1)), "the state has 1 rows"),
    ],
)
def test_a_call_that_cannot_be_met_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call(build())


def test_a_model_whose_logits_are_nan_is_refused():
    model = build()
    torch.nn.init.constant_(model.norm.weight, torch.nan)
    with pytest.raises(ValueError, match="logits hold NaN"):
        greedy(model, text(1, 3), 3)


@pytest.fixture
def unchecked():
    """As it is for users: no argument's type is checked before the call."""
    jaxtyping.config.update("jaxtyping_disable", True)


CLASSIFIER = lv.ClassifierConfig(layer="gla", d_model=16, depth=1, classes=3, features=1)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: lv.SequenceClassifier(CLASSIFIER), "SequenceClassifier, which judges sequences and writes no text."),
        (lambda: (build(), None), "but came as tuple."),
        (lambda: torch.nn.Linear(2, 2), "but came as Linear."),
    ],
)
def test_what_is_no_language_model_is_refused(model, said, unchecked):
    for name, call in {
        "generate": lambda: lv.generate(model(), text(1, 3), max_new_tokens=2),
        "stream": lambda: lv.stream(model(), None, "a", max_new_tokens=2),
    }.items():
        with pytest.raises(ValueError, match=f"{name}: the model must be a LanguageModel, but came as") as caught:
            call()
        assert said in str(caught.value)


class Wrapped(torch.nn.Module):
    """A model around a model that it asks for what it hasn't itself, as torch.compile's is."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        own = self.__dict__["_modules"]
        return own[name] if name in own else getattr(own["inner"], name)

    def forward(self, *given, **options):
        return self.inner(*given, **options)


def test_a_model_that_is_wrapped_still_writes(unchecked):
    model, ids = build(), text(1, 3)
    assert torch.equal(greedy(Wrapped(model), ids, 3).ids, greedy(model, ids, 3).ids)


def test_a_missing_tokenizer_is_named(unchecked):
    with pytest.raises(ValueError, match="stream: the tokenizer is None.*use generate"):
        lv.stream(build(), None, "a", max_new_tokens=2)
