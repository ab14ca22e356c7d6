"""The recall experiment, held to the same experiment written out with loops."""

import pytest
import torch
from torch.nn.functional import normalize

from lavagna.reproduce.recall import RULES, TRIALS, WITHIN, ask, errors


def by_hand(rule: str, pairs: int, channels: int, trials: int, seed: int) -> tuple[list[float], list[float]]:
    """Errors of recall and of the rewritten key, trial by trial and pair by pair, from the rule as it is printed."""
    generator = torch.Generator().manual_seed(seed)
    again = torch.randn(trials, channels, dtype=torch.float64, generator=generator)
    drawn = torch.randn(pairs, 2, trials, channels, dtype=torch.float64, generator=generator)
    recall, rewritten = [], []
    for trial in range(trials):
        memory = torch.zeros(channels, channels, dtype=torch.float64)

        def write(key, value):
            nonlocal memory
            memory = memory + torch.outer(value - memory @ key if rule == "delta" else value, key)

        told = [(normalize(key, dim=0), value) for key, value in drawn[:, :, trial]]
        for key, value in told:
            write(key, value)
        found = [((memory @ key - value).norm() / value.norm()).item() for key, value in told]
        recall.append(sum(found) / pairs)
        new = again[trial]
        write(told[0][0], new)
        rewritten.append(((memory @ told[0][0] - new).norm() / new.norm()).item())
    return recall, rewritten


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pairs", [1, 5, 9])
def test_the_errors_are_those_of_the_rule_written_out(rule, pairs, device):
    found = errors(rule, pairs, channels=6, trials=4, seed=7, device=str(device))
    for ours, wanted in zip(found, by_hand(rule, pairs, 6, 4, 7), strict=True):
        assert torch.allclose(ours.cpu(), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-12)


def test_one_pair_is_recalled_exactly_by_both_rules(device):
    for rule in RULES:
        assert errors(rule, 1, trials=50, device=str(device)).recall.max() < 1e-12


def test_asking_changes_nothing_and_answers_the_product(device):
    memory = torch.randn(2, 1, 3, 4, dtype=torch.float64, device=device)
    keys = torch.randn(2, 5, 1, 4, dtype=torch.float64, device=device)
    assert torch.allclose(ask(memory, keys), torch.einsum("bhvk,bthk->bthv", memory, keys), rtol=0, atol=1e-12)


@pytest.mark.parametrize("quantity", WITHIN)
def test_the_tolerance_is_the_rounding_and_three_standard_errors_of_the_widest_spread_and_no_more(quantity):
    spread = max(getattr(errors("sum", pairs), quantity).std().item() for pairs in (8, 16, 32))
    assert WITHIN[quantity] == pytest.approx(0.005 + 3 * (2 / TRIALS) ** 0.5 * spread, rel=0.05)


def test_an_unknown_rule_names_the_known_ones():
    with pytest.raises(ValueError, match="sum, delta"):
        errors("product", 3)
