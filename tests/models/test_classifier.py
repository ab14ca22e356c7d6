"""A classifier judges a sequence, however it is cut, padded or packed."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import lavagna as lv
from lavagna.models.config import POOLINGS

HYBRID = ["gated_delta_net", "mamba2", "softmax_attention"]
LAYERS = [*lv.layers.names(), HYBRID]
FEATURES, VOCAB, CLASSES = 3, 11, 5
NAN = float("nan")
BOTH_WAYS = ["lssl", "s4", "dss", "s4d", "s5"]
BIDIRECTIONAL = {"bidirectional": True, "d_state": 8}


def build(layer="gla", *, dtype=torch.float64, device="cpu", **changed):
    depth = len(layer) if isinstance(layer, list) else 2
    given = {"d_model": 16, "depth": depth, "classes": CLASSES} | changed
    if "vocab_size" not in given:
        given["features"] = FEATURES
    model = lv.SequenceClassifier(lv.ClassifierConfig(layer=layer, **given)).to(device, dtype)
    with torch.no_grad():
        for parameter in (model.head.weight, model.head.bias):
            parameter += torch.randn_like(parameter)
    return model.eval()


def numbers(*shape, device="cpu"):
    return torch.randn(*shape, FEATURES, device=device, dtype=torch.float64)


def close(ours, wanted, tolerance=1e-10):
    return (ours - wanted).abs().max() <= tolerance * wanted.abs().max()


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("cut", [(5, 1, 0, 3), (1,) * 9], ids=str)
def test_a_sequence_in_pieces_has_the_logits_and_the_state_of_the_whole(layer, cut, device):
    model, x = build(layer, device=device), numbers(2, 9, device=device)
    logits, state = model(x)
    carried = None
    for piece in x.split(cut, 1):
        last, carried = model(piece, carried)
    assert close(last, logits)
    for ours, wanted in zip(carried.tensors().values(), state.tensors().values(), strict=True):
        assert ours.shape == wanted.shape and (not wanted.numel() or close(ours, wanted))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_each_pooling_is_what_its_name_says_of_the_real_steps(pooling, device):
    model, x = build(pooling=pooling, device=device), numbers(2, 6, device=device)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 0, 1]], device=device).bool()
    steps, _ = model.through(
        model.encoder(x * mask[..., None]), None, mask=mask, cu_seqlens=None, form="auto", backend="auto"
    )
    for row, logits in enumerate(model(x, mask=mask).logits):
        real = steps[row, mask[row]]
        wanted = {"mean": real.mean(0), "max": real.amax(0), "last": real[-1]}[pooling]
        assert close(logits, model.head(wanted))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side_changes_nothing_even_where_it_is_no_number(pooling, side, device):
    model, x = build(pooling=pooling, device=device), numbers(1, 4, device=device)
    wanted = model(x).logits
    (gradient,) = torch.autograd.grad(wanted.square().sum(), model.encoder.weight)
    nothing = torch.full((1, 3, FEATURES), NAN, dtype=x.dtype, device=device)
    padded = torch.cat([nothing, x] if side == "left" else [x, nothing], 1).requires_grad_()
    logits = model(padded, mask=~padded.isnan().any(-1)).logits
    found, to_input = torch.autograd.grad(logits.square().sum(), [model.encoder.weight, padded])
    assert close(logits, wanted) and close(found, gradient)
    assert to_input.isfinite().all() and not to_input[padded.isnan()].any()


@pytest.mark.parametrize("pooling", POOLINGS)
def test_packed_sequences_are_judged_as_apart(pooling, device):
    model, x = build(pooling=pooling, device=device), numbers(1, 9, device=device)
    mask = torch.tensor([[1, 0, 1, 1, 1, 1, 0, 1, 1]], device=device)
    logits, state = model(x, mask=mask, cu_seqlens=torch.tensor([0, 3, 3, 9], device=device))
    for row, real in enumerate(([0, 2], [], [3, 4, 5, 7, 8])):
        alone = model(x[:, real])
        assert close(logits[row], alone.logits[0])
        assert state.tokens_seen[row] == len(real)
        assert close(state[-1].pooled[row], alone.state[-1].pooled[0]) or not real


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_sequence_without_a_real_step_has_the_heads_bias_and_finite_gradients(pooling, steps, device):
    model = build(pooling=pooling, device=device)
    x = torch.full((2, steps, FEATURES), NAN, dtype=torch.float64, device=device)
    logits = model(x, mask=torch.zeros(2, steps, device=device)).logits
    logits.square().sum().backward()
    assert torch.equal(logits, model.head.bias.expand(2, -1))
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_ids_are_looked_up_and_those_under_the_mask_change_nothing(device):
    model = build(vocab_size=VOCAB, device=device)
    ids = torch.randint(VOCAB, (2, 6), device=device)
    mask = torch.tensor([[1, 1, 0, 1, 1, 0], [1] * 6], device=device).bool()
    wanted = model(ids, mask=mask).logits
    assert torch.equal(model(ids.masked_fill(~mask, 10**9), mask=mask).logits, wanted)
    assert not close(model((ids + 1) % VOCAB, mask=mask).logits, wanted)


def test_a_state_that_was_saved_and_sorted_goes_on(tmp_path, device):
    model, x, more = build(device=device), numbers(3, 6, device=device), numbers(2, 4, device=device)
    model(x).state.select([2, 0]).save(tmp_path / "state")
    logits = model(more, lv.load_state(tmp_path / "state", device=device)).logits
    assert close(logits, model(torch.cat([x[[2, 0]], more], 1)).logits)


@pytest.mark.parametrize("layer", BOTH_WAYS)
def test_a_model_that_reads_both_ways_judges_whole_sequences_and_has_no_state(layer, device):
    model, x = build(layer, options=BIDIRECTIONAL, device=device), numbers(2, 6, device=device)
    logits, state = model(x)
    assert state is None and logits.isfinite().all()
    for call in (lambda: model.initial_state(2), lambda: model(x, build().initial_state(2))):
        with pytest.raises(ValueError, match="reads in both directions, so it has no state"):
            call()


@pytest.mark.parametrize("layer", BOTH_WAYS)
def test_a_model_that_reads_both_ways_judges_padded_and_packed_sequences_as_apart(layer, device):
    model, x = build(layer, options=BIDIRECTIONAL, device=device), numbers(1, 9, device=device)
    first, second = model(x[:, :4]).logits, model(x[:, 4:]).logits
    assert close(model(x, cu_seqlens=[0, 4, 9]).logits, torch.cat([first, second]))
    for mask in (torch.arange(9) < 4, torch.arange(9) >= 4):
        padded = x.masked_fill(~mask[:, None].to(device), NAN)
        assert close(model(padded, mask=mask[None].to(device)).logits, first if mask[0] else second)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_build_equals_a_meta_build_emptied_and_reset_with_the_same_seed(layer, device):
    given = {"layer": layer, "d_model": 16, "depth": 3, "classes": 4}
    for kind in ({"features": 2}, {"vocab_size": 7}):
        config = lv.ClassifierConfig(**given, **kind)
        with torch.device(device):
            torch.manual_seed(3)
            normal = lv.SequenceClassifier(config)
        with torch.device("meta"):
            late = lv.SequenceClassifier(config)
        late.to_empty(device=device)
        torch.manual_seed(3)
        late.reset_parameters()
        pairs = zip(normal.state_dict().items(), late.state_dict().items(), strict=True)
        assert all(name == other and torch.equal(x, y) for (name, x), (other, y) in pairs)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_every_parameter_gets_a_gradient_also_where_activations_are_recomputed(layer, device):
    model, x = build(layer, device=device), numbers(4, 7, device=device)
    with torch.no_grad():
        # Off what they start from: what is zero at first lets nothing through.
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    seen = []
    for model.checkpointing in (False, True):
        model.zero_grad()
        cross_entropy(model(x).logits, torch.arange(4, device=device)).backward()
        seen.append([parameter.grad for parameter in model.parameters()])
    assert all(gradient is not None and gradient.any() for gradient in seen[0])
    assert all(close(recomputed, kept) for kept, recomputed in zip(*seen, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_judges_nearly_the_same_and_pools_in_float32(dtype, device):
    model, x = build(device=device), numbers(2, 9, device=device)
    logits, state = model.to(dtype)(x.to(dtype))
    assert logits.dtype == dtype and state[-1].pooled.dtype == torch.float32
    assert close(logits.double(), model.double()(x).logits, 0.1)


def test_dropout_works_in_training_alone(device):
    model, x = build(dropout=0.5, device=device), numbers(2, 6, device=device)
    assert torch.equal(model(x).logits, model(x).logits)
    model.train()
    assert not torch.equal(model(x).logits, model(x).logits)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda m: m(numbers(2, 3)[..., :2]), r"features = 3, but came as torch.float64 \(2, 3, 2\)"),
        (lambda m: m(torch.ones(2, 3, 3, dtype=torch.int64)), "must be floating"),
        (lambda m: m(numbers(2, 3).float()), "x is torch.float32, but the model's weights are torch.float64"),
        (lambda m: m(numbers(2, 3), mask=torch.ones(2, 4)), r"mask must be a tensor \(b, t\) = \(2, 3\)"),
        (lambda m: m(numbers(2, 3), cu_seqlens=[0, 3]), "b must be 1"),
        (lambda m: m(numbers(2, 3), form="fast"), "form must be one of"),
        (lambda m: m(numbers(2, 3), lv.ModelState([])), "state must be what this model returned"),
        (lambda m: m(numbers(2, 3), m.initial_state(1)), "the state has 1 rows, but the call has 2"),
        (lambda m: build(vocab_size=VOCAB)(torch.tensor([[VOCAB]])), "id 11 is beyond the vocabulary of 11"),
        (lambda m: build(vocab_size=VOCAB)(torch.zeros(2, 3)), "ids must be integers"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_in_one_line(call, said):
    with pytest.raises(ValueError, match=said) as caught:
        call(build())
    assert "\n" not in str(caught.value)
