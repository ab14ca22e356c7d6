"""Captured steps over caches of attention: texts over borders of caches and windows, from one state, by any threads."""

import pytest
import torch

import lavagna as lv
from generation.plain_steps import HYBRID, VOCAB, alike, build, texts
from lavagna.generation import captured, stepper
from lavagna.generation.captured import capture
from lavagna.kernels.cpu.library import library

if library().functions is None:
    pytest.skip(f"the CPU kernels are {library().level}", allow_module_level=True)

ATTENTIONS = {
    "plain": {},
    "windowed": {"heads": 4, "window": 7, "rotary_fraction": 0},
    "shared": {"heads": 4, "kv_heads": 1, "window": 12, "qk_norm": "width"},
    "gated": {"heads": 4, "kv_heads": 2, "rotary_fraction": 0.5, "qk_norm": "zero_centered_head", "gate": True},
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("options", ATTENTIONS.values(), ids=ATTENTIONS)
def test_greedy_text_goes_on_over_the_borders_of_caches_and_windows(options, rows, monkeypatch):
    model = build(HYBRID, options={"gated_delta_net": {}, "softmax_attention": options, "mamba2": {}})
    ids, taken, own = torch.randint(VOCAB, (rows, 9)), [], stepper.capture
    mask = torch.ones_like(ids).bool()
    mask[1:2, :6] = mask[2:, 4:8] = False
    monkeypatch.setattr(captured, "ROOM", 6)
    monkeypatch.setattr(stepper, "capture", lambda *given: taken.append(own(*given)) or taken[-1])
    one, other = texts(model, ids, monkeypatch, 60, mask=mask)
    alike(one, other)
    # As many more as were seen, again and again; a window's room has no end.
    assert sum(step is not None for step in taken) == (1 if "window" in options else 3)
    # From the state, both ways anew.
    for state in (one.state, other.state):
        alike(*texts(model, one.ids[:, -1:], monkeypatch, 15, state=state))


@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
@pytest.mark.parametrize("layer", ["softmax_attention", HYBRID], ids=str)
def test_greedy_text_of_narrow_weights_is_the_plain_paths(layer, kind, monkeypatch):
    model = build(layer)
    if kind == "int8":
        pytest.importorskip("torchao")
        model = lv.quantize(model)
    else:
        model.bfloat16()
    alike(*texts(model, torch.randint(VOCAB, (2, 5)), monkeypatch), 1e-4 if kind == "int8" else 0.05)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"window": 7}], ids=str)
def test_texts_that_go_on_from_one_state_know_nothing_of_each_other(options, tmp_path):
    model = build(["softmax_attention", "gla"], options={"softmax_attention": options, "gla": {}})
    state = lv.generate(model, torch.randint(VOCAB, (2, 9)), max_new_tokens=30, temperature=0).state
    state.save(tmp_path / "state")
    before = [x.clone() for x in state.tensors().values()]
    read, steps = lv.load_state(tmp_path / "state"), []
    for given in (state, state, read):
        steps.append(capture(model, torch.full((2, 1), 3), given, 100))
        steps[-1](torch.full((2, 1), 5))
    # In turn, so that each would write over what another reads.
    found = [[step(torch.full((2, 1), number % VOCAB)).clone() for step in steps] for number in range(12)]
    assert all(torch.equal(one, other) for one, *others in found for other in others)
    turned = state.select([1, 0])
    crossed = lv.generate(model, torch.tensor([[3], [4]]), state=turned, max_new_tokens=30, temperature=0)
    straight = lv.generate(model, torch.tensor([[4], [3]]), state=state, max_new_tokens=30, temperature=0)
    assert torch.equal(crossed.ids.flip(0), straight.ids)
    assert all(map(torch.equal, state.tensors().values(), before))


def test_steps_over_a_cache_do_not_depend_on_the_threads():
    model, threads, found = build(HYBRID, d_model=64), torch.get_num_threads(), []
    ids = torch.randint(VOCAB, (2, 700))
    state = lv.generate(model, ids, max_new_tokens=0).state
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            with torch.no_grad():
                step = capture(model, ids[:, -1:], state, 100)
            found.append(torch.cat([step(ids[:, number : number + 1]).clone() for number in range(5)]))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, found[0]) for one in found[1:])
