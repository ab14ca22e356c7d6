"""A memory as it is written: what a model holds after each token of a text."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.data import AbstractTokenizer, Tokenizer

SNAPSHOTS = 8


class Recording(NamedTuple):
    """One head's memory over a text: norms and changes after every token, the matrices after a few of them.

    A layer whose heads keep a single row each is recorded with all of them, one under the other; complex numbers as
    their real parts beside their imaginary ones. `axes` says in words what lies down and what across.

    `norm` and `change` are Frobenius norms of `S_t` and of `S_t - S_{t-1}`; `memory[i]` is the matrix after token
    `shown[i]`.
    """

    layer: str
    ids: list[int]
    norm: Float[Tensor, " t"]
    change: Float[Tensor, " t"]
    shown: list[int]
    memory: Float[Tensor, "s v k"]
    axes: str


def snapshots(steps: int) -> list[int]:
    """The tokens whose memory is kept: all of a short text, else eight at even distances from first to last."""
    shown = min(steps, SNAPSHOTS)
    return [round(i * (steps - 1) / max(shown - 1, 1)) for i in range(shown)]


def record(
    model: nn.Module, text: str, *, tokenizer: AbstractTokenizer | None = None, block: int = 0, head: int = 0
) -> Recording:
    """Run a model over a text one token at a time and look into one head's memory after each.

    `tokenizer` None means bytes. Memory use doesn't grow with the text beyond two numbers a token. Raises ValueError
    on an empty text, and on a block or head that the model doesn't have or whose layer keeps no matrix of fixed size.
    """
    ids = (tokenizer or Tokenizer.bytes()).encode(text)
    if not ids:
        raise ValueError("plots.state: text is empty. Give some text for the memory to be written with.")
    row = torch.tensor([ids], device=next(model.parameters()).device)
    shown = snapshots(len(ids))
    sizes, kept = [], []
    state: Any = None
    before: Tensor | None = None
    with torch.no_grad(), _evaluating(model):
        for t in range(len(ids)):
            _, state = model(row[:, t : t + 1], state)
            memory, axes = _matrix(_memory(state, block), head)
            change = memory if before is None else memory - before
            sizes.append(torch.stack([memory, change]).norm(dim=(1, 2)))
            if t in shown:
                kept.append(memory)
            before = memory
    norm, change = torch.stack(sizes, 1).cpu()
    return Recording(state[block].kind, ids, norm, change, shown, torch.stack(kept).cpu(), axes)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _memory(state: Any, block: int) -> Tensor:
    """The memory of the first row of a model's state, (h, v, k) or, in pairs, (h, v, k, 2)."""
    if not 0 <= block < len(state):
        raise ValueError(f"plots.state: block must be from 0 to {len(state) - 1}, but came as {block}.")
    if not _has_matrices(state[block]):
        able = [index for index, other in enumerate(state) if _has_matrices(other)]
        raise ValueError(
            f"plots.state: block {block} is {state[block].kind}, which keeps no matrix of fixed size a head. "
            f"Blocks that do: {', '.join(map(str, able)) or 'none'}."
        )
    return state[block].tensors()["memory"][0]


def _has_matrices(state: Any) -> bool:
    return "memory" in state.tensors() and state.tensors()["memory"].ndim in (4, 5)


def _matrix(memory: Tensor, head: int) -> tuple[Tensor, str]:
    """One head's matrix in float64, or all heads' rows where they have but one, and what lies down and across."""
    if not 0 <= head < len(memory):
        raise ValueError(f"plots.state: head must be from 0 to {len(memory) - 1}, but came as {head}.")
    pairs, memory = memory.ndim == 4, memory.double()
    if pairs:
        memory = torch.cat(memory.unbind(-1), -1)
    rows, columns = memory.shape[1:]
    across = f"{columns} key channels (across)"
    if pairs:
        across = f"{columns // 2} complex key channels (across, real parts left)"
    if rows == 1:
        return memory[:, 0], f"{len(memory)} heads (down) by {across}"
    return memory[head], f"head {head}: {rows} value channels (down) by {across}"
