"""A loop over steps in torch, of any cell: what a kernel's gradients of gradients are taken of."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# From what a step is given and the state before it to what it shows and the state after it.
Step = Callable[[Sequence[Tensor], tuple[Tensor, ...]], tuple[Tensor, tuple[Tensor, ...]]]


def stepwise(
    step: Step,
    given: Sequence[Tensor],
    state: tuple[Tensor, ...],
    mask: Tensor | None,
    offsets: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """What every step shows (b, t, ...), and each sequence's state after its last.

    Steps are given (b, t, ...), states (n, ...). A masked step is a no-op and shows zeros, whatever it holds.
    """
    if mask is not None:
        given = [x.masked_fill(~_beside(mask, x), 0) for x in given]
    if offsets is None:
        return _run(step, given, state, mask)
    borders, shown, after = offsets.tolist(), [], []
    for row, (start, end) in enumerate(zip(borders, borders[1:], strict=False)):
        own = tuple(x[row : row + 1] for x in state)
        y, last = _run(step, [x[:, start:end] for x in given], own, None if mask is None else mask[:, start:end])
        shown.append(y)
        after.append(last)
    return torch.cat(shown, 1), tuple(torch.cat(parts) for parts in zip(*after, strict=True))


def _run(
    step: Step, given: Sequence[Tensor], state: tuple[Tensor, ...], mask: Tensor | None
) -> tuple[Tensor, tuple[Tensor, ...]]:
    shown, state = [], tuple(x * 1 for x in state)
    for t in range(given[0].shape[1]):
        y, after = step([x[:, t] for x in given], state)
        if mask is not None:
            real = mask[:, t]
            y = torch.where(_beside(real, y), y, 0)
            after = tuple(torch.where(_beside(real, x), x, old) for x, old in zip(after, state, strict=True))
        shown.append(y)
        state = after
    return torch.stack(shown, 1) if shown else given[0] * 1, state


def _beside(mask: Tensor, x: Tensor) -> Tensor:
    return mask.reshape(*mask.shape, *(1,) * (x.ndim - mask.ndim))
