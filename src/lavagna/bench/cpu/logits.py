"""Whether the logits of a model that generates are right: ours as its steps give them, and a peer's."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lavagna.bench.cpu.row import Verdict
from lavagna.checks.row import TOLERANCES, distance
from lavagna.generation.prefill import evaluating, prefill
from lavagna.generation.stepper import Stepper
from lavagna.models import LanguageModel

# Ids before the first step, and steps whose logits are held to the definition.
PROMPT, JUDGED = 16, 8
# Of what torch alone errs in the same dtype.
TIMES = 2.0


def judged(model: LanguageModel, ids: Tensor) -> Verdict:
    """Logits of steps as generation takes them, against the same weights in float64, a token at a time by torch.

    What torch alone errs in the same dtype, the prompt read at once, says how near they must be.
    """
    ids = ids[:, : PROMPT + JUDGED]
    wanted = _steps(_plain(copy.deepcopy(model).double()), ids)[:, PROMPT:]
    own = distance([_steps(_plain(model), ids, first=PROMPT)[:, PROMPT:]], [wanted])
    with evaluating(model):
        stepper = Stepper(model, prefill(model, ids[:, :PROMPT]), 1 << 10)
        came = torch.cat([stepper(ids[:, t : t + 1]).clone() for t in range(PROMPT, ids.shape[1])], 1)
    tolerance = max(TIMES * own, TOLERANCES["output", torch.float32])
    return Verdict(distance([came], [wanted]), tolerance)


def _plain(model: LanguageModel) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
    return lambda ids, state: model(ids, state, form="auto", backend="torch")


def _steps(call: Callable[[Tensor, Any], tuple[Tensor, Any]], ids: Tensor, first: int = 1) -> Tensor:
    """All logits: those of the `first` ids at once, then one by one."""
    state, logits = None, []
    for some in (ids[:, :first], *ids[:, first:].split(1, 1)):
        told, state = call(some, state)
        logits.append(told)
    return torch.cat(logits, 1)


def agreement(model: LanguageModel, logits: Tensor, ids: Tensor, exact: LanguageModel | None = None) -> Verdict:
    """A peer's last logits of a text, in its dtype, against the model's in float64; torch's own error says how near.

    Where both have rounded weights by themselves, against the model with the `exact` ones.
    """
    wanted = _plain(copy.deepcopy(exact or model).double())(ids, None)[0][:, -1]
    own = distance([_plain(model)(ids, None)[0][:, -1]], [wanted])
    # Another order of roundings may be some times worse, and is not judged here but by its result.
    return Verdict(distance([logits], [wanted]), max(10 * own, 1e-3))
