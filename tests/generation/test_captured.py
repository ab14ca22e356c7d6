"""A captured step is the model's own step: the same numbers, the same states, the same text."""

from functools import partial

import pytest
import torch

import lavagna as lv
from generation.plain_steps import HYBRID, VOCAB, alike, build, texts
from lavagna.data import Tokenizer
from lavagna.generation import captured, stepper
from lavagna.generation.captured import capture
from lavagna.generation.stepper import Stepper
from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.linear_few import FEW

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

# A cache that grows, of another kind than attention's, and a loop of torch's own.
PLAIN = {"hyena", "lstm"}
LAYERS = [name for name in lv.layers.names() if name not in PLAIN]


@torch.no_grad()
def begun(model, rows=1):
    return model(torch.randint(VOCAB, (rows, 5))).state


def id_of(number):
    return torch.tensor([[number % VOCAB]])


@torch.no_grad()
def compared(model, tolerance, steps=5):
    """Steps of both kinds from one state; a capture always begins with its own."""
    state = begun(model)
    step = capture(model, id_of(3), state, 100)
    assert step is not None
    ours = step.logits
    for number in range(steps):
        right, state = model(id_of(3 + 5 * number), state)
        assert ours.shape == right.shape and ours.dtype == right.dtype
        assert torch.allclose(ours, right, rtol=0, atol=tolerance)
        for name, x in state.tensors().items():
            mine = step.state.tensors()[name]
            assert mine.dtype == x.dtype and torch.allclose(mine, x, rtol=tolerance, atol=tolerance)
        ours = step(id_of(3 + 5 * (number + 1)))


@pytest.mark.parametrize("layer", [*LAYERS, ["gated_delta_net", "mamba2"], HYBRID], ids=str)
def test_steps_are_the_models_own(layer):
    compared(build(layer, torch.float64), 1e-12, steps=3)


@pytest.mark.parametrize("layer", ["mamba2", "rwkv7", "gla"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)], ids=str)
def test_where_linear_maps_sum_in_another_order_steps_are_within_rounding(layer, dtype, tolerance):
    compared(build(layer, dtype), tolerance)


@pytest.mark.parametrize("layer", ["mamba2", "rwkv7", "gla"])
def test_every_linear_map_is_a_kernels(layer):
    model = build(layer)
    with torch.no_grad():
        step = capture(model, id_of(3), begun(model), 100)
    assert step is not None
    left = {call.func.__name__ for call in step._program.steps if isinstance(call, partial)}
    assert not left & {"mm", "addmm", "linear"}
    assert sum(getattr(call, "name", "") == "lavagna_linear_few" for call in step._program.steps) > 4


@pytest.mark.parametrize("layer", [*lv.layers.names(), HYBRID], ids=str)
def test_greedy_text_is_the_plain_paths(layer, monkeypatch):
    alike(*texts(build(layer), torch.randint(VOCAB, (1, 5)), monkeypatch))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.sampled(3)
def test_greedy_text_of_some_rows_is_the_plain_paths_also_past_the_end_of_one(layer, monkeypatch):
    alike(*texts(build(layer), torch.randint(VOCAB, (3, 5)), monkeypatch, eos=[0, 1, 2]))


@pytest.mark.parametrize("layer", sorted(PLAIN))
def test_what_can_not_be_captured_is_left_to_the_model(layer):
    model = build(layer)
    with torch.no_grad():
        assert capture(model, id_of(3), begun(model), 100) is None


def test_a_step_is_only_captured_where_that_is_the_same():
    model = build()
    state = begun(model)
    with torch.no_grad():
        assert capture(model, id_of(3), state, 100) is not None
        assert capture(model, id_of(3), state, captured.WORTH - 1) is None
        assert capture(model, id_of(3).expand(FEW, 1), begun(model, FEW), 100) is not None
        assert capture(model, id_of(3).expand(FEW + 1, 1), begun(model, FEW + 1), 100) is None
        assert capture(model.train(), id_of(3), state, 100) is None
        hook = model.eval().blocks[1].register_forward_hook(lambda *_: None)
        assert capture(model, id_of(3), state, 100) is None
        hook.remove()
    assert capture(model, id_of(3), state, 100) is None


@torch.no_grad()
def test_nothing_of_the_callers_is_changed_and_nothing_returned_changes():
    model = build("mamba2")
    state = begun(model)
    before = [x.clone() for x in state.tensors().values()]
    step = capture(model, id_of(3), state, 100)
    held = step.state
    copies = [x.clone() for x in held.tensors().values()]
    for number in range(4):
        step(id_of(number))
    assert all(map(torch.equal, state.tensors().values(), before))
    assert all(map(torch.equal, held.tensors().values(), copies))


@torch.no_grad()
@pytest.mark.parametrize("layer", ["mamba2", "rwkv7"])
def test_weights_that_change_between_steps_are_seen(layer):
    model = build(layer)
    step = Stepper(model, begun(model), 100, watch=True)
    state = step.state
    for number in range(9):
        if number == 4:
            for x in model.parameters():
                x.mul_(1.3)
        if number == 6:
            model.load_state_dict({name: x * 0.9 for name, x in model.state_dict().items()}, assign=True)
        right, state = model(id_of(number), state)
        assert torch.allclose(step(id_of(number)), right, atol=1e-5)
    assert step._captured is not None and step.state.tokens_seen.tolist() == state.tokens_seen.tolist()


@torch.no_grad()
def test_a_masked_step_is_the_models_own_and_the_next_goes_on():
    model = build()
    state = begun(model)
    step = Stepper(model, state, 100)
    for number in range(8):
        mask = torch.tensor([[number not in (4, 5)]])
        right, state = model(id_of(number), state, mask=mask)
        ours = step(id_of(number), None if mask.all() else mask)
        assert not mask.all() or torch.allclose(ours, right, atol=1e-5)
    assert step.state.tokens_seen.tolist() == state.tokens_seen.tolist() == [11]


def test_long_calls_are_captured(monkeypatch):
    taken, own = [], stepper.capture
    monkeypatch.setattr(stepper, "capture", lambda *given: taken.append(own(*given)) or taken[-1])
    lv.generate(build("mamba2"), torch.zeros(1, 3, dtype=torch.int64), max_new_tokens=40)
    assert len(taken) == 1 and taken[0] is not None


def changed_by_a_fused_optimizer(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    for x in model.parameters():
        x.grad = torch.randn_like(x)
    optimizer.step()


def changed_through_data(model):
    for x in model.parameters():
        x.data.mul_(1.2)


def changed_past_torch(model):
    for x in model.parameters():
        x.detach().numpy().__imul__(0.8)


def hooked(model):
    model.blocks[1].mixer.register_forward_hook(lambda part, given, made: made._replace(y=2 * made.y))


def replaced(model):
    model.norm = type(model.norm)(model.config.d_model)
    torch.nn.init.normal_(model.norm.weight)


@pytest.mark.parametrize("layer", ["mamba2", "rwkv7", "s4", "gated_delta_net"])
@pytest.mark.parametrize(
    "change", [changed_by_a_fused_optimizer, changed_through_data, changed_past_torch, hooked, replaced]
)
def test_however_a_model_changes_between_steps_the_next_one_knows(layer, change):
    model = build(layer, torch.float64)
    with torch.no_grad():
        step = Stepper(model, begun(model), 100, watch=True)
        state = step.state
    for number in range(7):
        if number == 4:
            assert step._captured is not None
            change(model)
        with torch.no_grad():
            right, state = model(id_of(number), state)
            assert torch.allclose(step(id_of(number)), right, atol=1e-11)


def test_a_stream_that_is_read_while_the_model_trains_is_that_of_plain_steps(monkeypatch):
    texts = []
    for worth in (1, 1000):
        monkeypatch.setattr(captured, "WORTH", worth)
        torch.manual_seed(0)
        model = build("mamba2", torch.float64, vocab_size=260)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        pieces = lv.stream(model, Tokenizer.bytes(), "abc", max_new_tokens=30, temperature=0)
        read = []
        for piece in pieces:
            read.append(piece)
            model(torch.randint(256, (2, 8))).logits.square().mean().backward()
            optimizer.step()
        texts.append(read)
    assert texts[0] == texts[1]
