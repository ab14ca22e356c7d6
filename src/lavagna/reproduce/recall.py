"""Recall: how well a memory of fixed size answers, and whether it can be corrected."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from lavagna.algebra.transition import Transition, householder, identity
from lavagna.dispatch import recur
from lavagna.reproduce.row import Row, row

TITLE = "A memory that corrects recalls better than one that adds, and rewrites a key exactly."
SOURCE = "The delta rule against the sum, after Schlag et al. 2021, arXiv 2102.11174, and Yang et al. 2024, 2406.06484."

CHANNELS = 32
TRIALS = 2000
RULES = ("sum", "delta")
# (rule, pairs): error of recall, error of a rewritten key.
PUBLISHED = {
    ("sum", 8): (0.46, 1.12),
    ("sum", 16): (0.68, 1.22),
    ("sum", 32): (0.99, 1.43),
    ("delta", 8): (0.30, 0.00),
    ("delta", 16): (0.49, 0.00),
    ("delta", 32): (0.72, 0.00),
}
NAMES = {"recall": "recall", "rewritten": "the rewritten key"}
# Half a unit of the last printed digit, and three standard errors of the difference of two runs of 2000 trials.
WITHIN = {"recall": 0.011, "rewritten": 0.03}


class Errors(NamedTuple):
    """Relative errors of every trial: the mean over the pairs it was told, and that of the key it was told anew."""

    recall: Float[Tensor, " trials"]
    rewritten: Float[Tensor, " trials"]


def errors(
    rule: str, pairs: int, *, channels: int = CHANNELS, trials: int = TRIALS, seed: int = 0, device: str = "cpu"
) -> Errors:
    """Write random pairs into an empty square memory, ask for all of them, then give the first key a new value.

    Keys are uniform on the unit sphere, values standard normal, one trial a row of the batch, float64. The error is
    `|S k - v| / |v|`. `rule` is "sum" (`A_t = I`) or "delta" (`A_t = I - k_t k_t^T`, beta 1).
    """
    if rule not in RULES:
        raise ValueError(f"errors: rule must be one of {', '.join(RULES)}, but came as {rule!r}.")
    generator = torch.Generator().manual_seed(seed)
    again = torch.randn(trials, 1, 1, channels, dtype=torch.float64, generator=generator).to(device)
    # Pair after pair: with one seed, a longer list starts with the shorter one, and a curve over its length is smooth.
    drawn = torch.randn(pairs, 2, trials, 1, channels, dtype=torch.float64, generator=generator).to(device)
    keys, values = normalize(drawn[:, 0], dim=-1).transpose(0, 1), drawn[:, 1].transpose(0, 1)
    memory = recur(_transition(rule, keys), keys, keys, values).state
    first = keys[:, :1]
    answer = recur(_transition(rule, first), first, first, again, memory).output
    return Errors(_relative(ask(memory, keys), values).mean(1), _relative(answer, again).mean(1))


def ask(memory: Float[Tensor, "b h v k"], keys: Float[Tensor, "b t h k"]) -> Float[Tensor, "b t h v"]:
    """What a memory answers to each key: the recurrence with nothing faded and nothing written."""
    nothing = keys.new_zeros(*keys.shape[:3], memory.shape[2])
    return recur(identity(), keys, torch.zeros_like(keys), nothing, memory).output


def _transition(rule: str, keys: Tensor) -> Transition:
    return identity() if rule == "sum" else householder(keys, torch.ones_like(keys[..., :1]))


def _relative(answer: Tensor, wanted: Tensor) -> Tensor:
    return ((answer - wanted).norm(dim=-1) / wanted.norm(dim=-1)).squeeze(-1)


def rows(*, seed: int = 0) -> list[Row]:
    """Error of recall and of a rewritten key for 8, 16 and 32 pairs in a 32 by 32 memory, 2000 trials."""
    out = []
    for (rule, pairs), published in PUBLISHED.items():
        found = errors(rule, pairs, seed=seed)
        for quantity, number, ours in zip(Errors._fields, published, found, strict=True):
            # A rewrite by the delta rule is an equality, not an average.
            within = 0.005 if (rule, quantity) == ("delta", "rewritten") else WITHIN[quantity]
            name = f"error of {NAMES[quantity]}, {rule}, {pairs} pairs"
            out.append(row("recall", name, number, ours.mean().item(), within=within))
    return out
