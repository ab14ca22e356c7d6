"""The next id: the likeliest, or one drawn as its probability says."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lavagna.generation.sampling import Sampler

LOGITS = torch.tensor([[0.0, 2.0, 1.0, -1.0, 1.5]])


def sampler(size=5, **options):
    return Sampler("generate", size=size, **options)


def drawn(logits, count=2000, **options):
    """Shares of each id among many draws."""
    ids = sampler(logits.shape[1], seed=0, **options)(logits.expand(count, -1))
    return torch.bincount(ids, minlength=logits.shape[1]) / count


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-4, 1e-30, 5e-324])
def test_temperatures_near_zero_take_the_likeliest(temperature):
    logits = torch.randn(50, 9, dtype=torch.float64)
    assert torch.equal(sampler(9, temperature=temperature)(logits), logits.argmax(1))


def test_temperature_zero_takes_the_lowest_of_several_likeliest():
    assert sampler(temperature=0)(torch.tensor([[1.0, 3.0, 2.0, 3.0, 3.0]])).tolist() == [1]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_ids_are_drawn_as_often_as_softmax_says(temperature):
    wanted = (LOGITS[0] / temperature).softmax(0)
    assert (drawn(LOGITS, temperature=temperature) - wanted).abs().max() < 3 * math.sqrt(0.25 / 2000)


def test_top_k_leaves_the_k_likeliest_in_their_proportion():
    shares = drawn(LOGITS, top_k=2)
    assert shares[[0, 2, 3]].sum() == 0
    assert shares[1].item() == pytest.approx(torch.tensor([2.0, 1.5]).softmax(0)[0].item(), abs=0.04)


def test_top_k_leaves_exactly_k_of_equal_ones():
    assert (drawn(torch.zeros(1, 6), top_k=3) > 0).tolist() == [True, True, True, False, False, False]


@given(p=st.floats(1e-6, 1.0), logits=st.lists(st.floats(-5, 5), min_size=1, max_size=6))
def test_top_p_leaves_the_fewest_ids_whose_probabilities_reach_p(p, logits):
    row = torch.tensor([logits], dtype=torch.float64)
    falling, order = row.softmax(1)[0].sort(descending=True, stable=True)
    below = (falling.cumsum(0) - falling) < p - 1e-9
    shares = drawn(row, count=200, top_p=p)
    assert set(shares.nonzero().flatten().tolist()) <= set(order[below | (torch.arange(len(logits)) == 0)].tolist())


def test_top_p_near_zero_takes_the_likeliest():
    assert drawn(LOGITS, top_p=1e-9)[1] == 1


def test_a_seed_repeats_its_draws_and_leaves_the_global_generator_alone():
    logits = torch.randn(40, 5)
    before = torch.get_rng_state()
    first, second, third = (sampler(seed=seed)(logits) for seed in (3, 3, 4))
    assert torch.equal(first, second) and not torch.equal(first, third)
    assert torch.equal(torch.get_rng_state(), before)


def test_without_a_seed_the_global_generator_decides():
    logits = torch.randn(40, 5)
    draws = []
    for _ in range(2):
        torch.manual_seed(5)
        draws.append(sampler()(logits))
    assert torch.equal(*draws)


@pytest.mark.parametrize("temperature", [0, 1e-30, 1.0, 1e30])
def test_rows_beyond_the_vocabulary_are_never_taken(temperature):
    logits = torch.randn(100, 280)
    logits[:, 277:] = 100
    assert sampler(277, temperature=temperature)(logits).max() < 277


def test_an_id_of_probability_zero_is_never_taken():
    assert drawn(torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]))[[0, 2, 4]].sum() == 0


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logits_without_a_meaning_are_refused(wrong, temperature):
    logits = LOGITS.clone()
    logits[0, 3] = wrong
    with pytest.raises(ValueError, match="logits hold NaN or infinity"):
        sampler(temperature=temperature)(logits)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"temperature": -0.1}, "temperature must be 0 .* but came as -0.1"),
        ({"temperature": math.nan}, "temperature must be 0"),
        ({"temperature": math.inf}, "temperature must be 0"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p must be above 0 and at most 1"),
        ({"top_k": 0}, "top_k must be an int >= 1"),
    ],
)
def test_options_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        sampler(**options)
