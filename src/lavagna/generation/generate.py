"""Ids that go on from given ids, for a batch of rows."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from lavagna.generation.prefill import check_model, evaluating, prefill
from lavagna.generation.sampling import Sampler
from lavagna.generation.stepper import Stepper
from lavagna.models import LanguageModel
from lavagna.packing import as_mask
from lavagna.state import ModelState


class Generated(NamedTuple):
    """The given ids followed by the new ones, and the state that has seen every id of its row but the last."""

    ids: Int[Tensor, "b t"]
    state: ModelState


def generate(
    model: LanguageModel,
    ids: Shaped[Tensor, "..."],
    *,
    max_new_tokens: int,
    state: ModelState | None = None,
    mask: Shaped[Tensor, "..."] | None = None,
    temperature: float = 1.0,
    top_p: float | None = None,
    top_k: int | None = None,
    eos: int | Sequence[int] | None = None,
    pad: int = 0,
    seed: int | None = None,
) -> Generated:
    """Continue every row of `ids` (b, t) by up to `max_new_tokens` ids, each a step of constant cost.

    - state: what the rows have seen before `ids`; None starts afresh.
    - mask (b, t): ids that are padding, on any side, are left out; each row needs one that is not.
    - temperature, top_p, top_k, seed: see `Sampler`; temperature 0 takes the likeliest id.
    - eos: ids that end a row. A row that ended is filled with `pad`, which its state does not see; when all rows have
      ended, no more columns are added.

    The state returned has seen every id of its row but the last, padding not counted: with `out = generate(...)`, the
    call `generate(model, out.ids[:, -1:], state=out.state, ...)` goes on exactly. Ids stay below
    `model.config.vocab_size`. The mode of the model (train or eval) is not changed.

    Raises ValueError on a model that writes no text, an empty prompt, ids beyond the vocabulary, options out of range,
    and logits that are NaN.
    """
    check_model("generate", model)
    if not isinstance(max_new_tokens, int) or max_new_tokens < 0:
        raise ValueError(f"generate: max_new_tokens must be an int >= 0, but came as {max_new_tokens!r}.")
    real = _real("generate", ids, mask)
    ids, size = ids.long(), model.config.vocab_size
    sample = Sampler("generate", size=size, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    with evaluating(model):
        last, past = _before_last(model, ids, state, real)
        new, past = _continued(model, last, past, sample, _ends(eos, ids.device), pad, max_new_tokens)
    return Generated(torch.cat([ids, *new], 1), past)


def _continued(
    model: LanguageModel, last: Tensor, state: ModelState, sample: Sampler, ends: Tensor, pad: int, count: int
) -> tuple[list[Tensor], ModelState]:
    """New columns (b, 1) and the state before the last of them."""
    columns, step = [], Stepper(model, state, count)
    running = torch.ones_like(last, dtype=torch.bool)
    for _ in range(count):
        if bool(running.all()):
            logits = step(last)
            last = sample(logits[:, -1])[:, None]
        else:
            # A row that ended stands still under the mask. Its logits are nobody's, and may be anything.
            logits = step(last, running)
            last = sample(logits[:, -1].masked_fill(~running, 0))[:, None].masked_fill(~running, pad)
        columns.append(last)
        running = running & ~torch.isin(last, ends)
        if not bool(running.any()):
            break
    return columns, step.state


def _ends(eos: int | Sequence[int] | None, device: torch.device) -> Int[Tensor, " n"]:
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    return torch.tensor(ends, dtype=torch.int64, device=device)


def _real(call: str, ids: Tensor, mask: Tensor | None) -> Bool[Tensor, "b t"] | None:
    """The mask as bool; raises ValueError where a row has no id to start from."""
    if ids.ndim != 2 or ids.is_floating_point():
        raise ValueError(f"{call}: ids must be integers (b, t), but came as {ids.dtype} {tuple(ids.shape)}.")
    real = None if mask is None else as_mask(call, mask, *ids.shape)
    empty = [0] if not ids.shape[1] else [] if real is None else (~real.any(1)).nonzero().flatten().tolist()
    if empty:
        raise ValueError(
            f"{call}: row {empty[0]} has no ids to go on from. Begin it with one, such as the end of text."
        )
    return real


def _before_last(
    model: LanguageModel, ids: Tensor, state: ModelState | None, real: Tensor | None
) -> tuple[Int[Tensor, "b 1"], ModelState]:
    """Each row's last real id, and the state that has seen the others."""
    if real is None:
        return ids[:, -1:], prefill(model, ids[:, :-1], state)
    place = torch.arange(ids.shape[1], device=ids.device)
    last = torch.where(real, place, -1).amax(1, keepdim=True)
    return ids.gather(1, last), prefill(model, ids, state, real & (place != last))
