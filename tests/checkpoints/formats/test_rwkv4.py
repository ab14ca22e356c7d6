"""RWKV-4 of transformers: the same logits, also where transformers' own are wrong."""

import pytest
import torch

import lavagna as lv
from checkpoints.formats.comparison import (
    damages,
    distance,
    in_pieces,
    of_transformers,
    reads_on,
    reads_padding,
    rewritten,
    round_trip_is_exact,
    same_logits,
    saved,
)

SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "context_length": 64}
VARIANTS = {
    "plain": {"rescale_every": 0},
    "tied": {"rescale_every": 0, "intermediate_size": 80, "tie_word_embeddings": True},
    "rescaled": {"rescale_every": 2, "layer_norm_epsilon": 1e-6},
}


@pytest.fixture(params=VARIANTS)
def case(request, transformers, tmp_path):
    """A folder with a random model, and the model itself, which changes its weights the first time it runs."""
    config = transformers.RwkvConfig(**SIZES, **VARIANTS[request.param])
    model = transformers.RwkvForCausalLM(config)
    return saved(model, tmp_path / "model"), model


def test_logits_are_those_of_transformers(case):
    folder, model = case
    # Its steps with two rows, and its padding, have tests of their own.
    same_logits(folder, of_transformers(model), steps=False, padding=False, length=13)


def test_steps_of_a_row_alone_are_those_of_transformers(case):
    folder, model = case
    ids, pieces = torch.randint(50, (1, 13)), [6] + [1] * 7
    theirs = of_transformers(model)
    right = theirs(ids)[0]
    assert distance(in_pieces(theirs, ids, pieces), right) < 1e-4
    assert distance(reads_on(folder, ids, pieces), right) < 1e-4


def test_transformers_steps_two_rows_wrongly_and_ours_step_as_each_alone(case):
    folder, model = case
    ids = torch.randint(50, (2, 6))
    theirs = of_transformers(model)
    right = torch.cat([theirs(row[None])[0] for row in ids])
    _, state = theirs(ids[:, :5])
    last = theirs(ids[:, 5:], state)[0]
    assert last.shape[:2] == (2, 2) and distance(last[:, -1], right[:, -1]) > 1e-2
    assert distance(reads_on(folder, ids, [5, 1]), right) < 1e-4


def test_transformers_ignores_the_mask_and_ours_does_not(case):
    folder, model = case
    assert reads_padding(folder, of_transformers(model), "left")


def test_transformers_keeps_no_state_of_an_attention_wider_than_the_stream_and_ours_does(transformers, tmp_path):
    config = transformers.RwkvConfig(**SIZES, rescale_every=0, attention_hidden_size=48)
    model = transformers.RwkvForCausalLM(config)
    folder = saved(model, tmp_path / "model")
    ids = torch.randint(50, (2, 9))
    with torch.no_grad():
        right = model(ids, use_cache=False).logits
        with pytest.raises(RuntimeError, match="size of tensor"):
            model(ids, use_cache=True)
    for pieces in ([9], [4, 5], [6, 1, 1, 1]):
        assert distance(reads_on(folder, ids, pieces), right) < 1e-4


def test_the_file_holds_weights_as_trained_though_transformers_divides_them_when_it_runs(transformers, tmp_path):
    model = transformers.RwkvForCausalLM(transformers.RwkvConfig(**SIZES, rescale_every=1))
    folder = saved(model, tmp_path / "model")
    before = model.rwkv.blocks[2].attention.output.weight.clone()
    of_transformers(model)(torch.zeros(1, 2, dtype=torch.long))
    assert torch.equal(model.rwkv.blocks[2].attention.output.weight, before / 4)
    assert torch.equal(lv.load(folder).model.blocks[2].mixer.out.weight, before)


def test_tensors_come_back_bit_for_bit(case, tmp_path):
    round_trip_is_exact(case[0])


def test_what_does_not_fit_is_named(case, tmp_path):
    damages(case[0], "rwkv", tmp_path)


def test_a_config_that_contradicts_the_tensors_is_refused(case):
    folder = rewritten(case[0], num_hidden_layers=4)
    with pytest.raises(ValueError, match=r"of rwkv: rwkv.blocks.3.* is missing"):
        lv.load(folder)
