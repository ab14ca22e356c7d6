"""The memory of a trained model as it is written, token by token."""

from functools import cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.data import Tokenizer
from lavagna.plots.sheet import place, sheet
from lavagna.plots.theme import Theme

TEXT = "def fade(memory):\n    return 0.9 * memory"
SNAPSHOTS = 8
LABELS = 48
LONGEST = 8
VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥"}


class Recording(NamedTuple):
    """A memory after each token: the layer's name, the matrices, their norms, how much each token changed them."""

    layer: str
    memory: Float[Tensor, "t v k"]
    norm: Float[Tensor, " t"]
    change: Float[Tensor, " t"]
    tokens: list[str]


def record(
    model: nn.Module, text: str, *, tokenizer: Tokenizer | None = None, block: int = 0, head: int = 0
) -> Recording:
    """Run a model over a text one token at a time and keep one head's memory after each.

    `tokenizer` None means bytes. Norms are Frobenius. Raises ValueError on an empty text, and on a block or head that
    the model doesn't have or whose layer keeps no matrix of fixed size.
    """
    tokenizer = tokenizer or Tokenizer.bytes()
    ids = tokenizer.encode(text)
    if not ids:
        raise ValueError("plots.state: text is empty. Give some text for the memory to be written with.")
    row = torch.tensor([ids], device=next(model.parameters()).device)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            state: Any = None
            memories = []
            for t in range(len(ids)):
                _, state = model(row[:, t : t + 1], state)
                memories.append(_memory(state, block, head))
    finally:
        model.train(training)
    memory = torch.stack(memories).cpu().double()
    before = torch.cat([torch.zeros_like(memory[:1]), memory[:-1]])
    tokens = [visible(tokenizer.decode([token])) for token in ids]
    return Recording(state[block].kind, memory, _norm(memory), _norm(memory - before), tokens)


def _norm(memory: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(memory)


def _memory(state: Any, block: int, head: int) -> Tensor:
    """One head's matrix, (v, k), of the first row of a model's state."""
    if not 0 <= block < len(state):
        raise ValueError(f"plots.state: block must be from 0 to {len(state) - 1}, but came as {block}.")
    tensors = state[block].tensors()
    if "memory" not in tensors or tensors["memory"].ndim != 4:
        able = [index for index, other in enumerate(state) if other.tensors().get("memory", torch.zeros(())).ndim == 4]
        raise ValueError(
            f"plots.state: block {block} is {state[block].kind}, which keeps no matrix of fixed size a head. "
            f"Blocks that do: {', '.join(map(str, able)) or 'none'}."
        )
    memory = tensors["memory"][0]
    if not 0 <= head < len(memory):
        raise ValueError(f"plots.state: head must be from 0 to {len(memory) - 1}, but came as {head}.")
    return memory[head]


def visible(token: str) -> str:
    """A token as it is shown: blanks as signs, what the font lacks as a box, at most eight characters."""
    shown = "".join(VISIBLE.get(character, character if _drawable(character) else "□") for character in token)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"


def _drawable(character: str) -> bool:
    return character.isprintable() and ord(character) in _glyphs()


@cache
def _glyphs() -> set[int]:
    from matplotlib.font_manager import findfont, get_font

    return set(get_font(findfont("DejaVu Sans")).get_charmap())


def snapshots(steps: int) -> list[int]:
    """The tokens whose memory is shown: all of a short text, else eight at even distances from first to last."""
    shown = min(steps, SNAPSHOTS)
    return [round(i * (steps - 1) / max(shown - 1, 1)) for i in range(shown)]


def figure(
    theme: Theme,
    *,
    model: nn.Module | None = None,
    tokenizer: Tokenizer | None = None,
    text: str = TEXT,
    block: int = 0,
    head: int = 0,
) -> Any:
    """A strip of memories above, the norm and the change of each token below."""
    if model is None:
        raise ValueError("plots.state: a model is needed, whose memory is drawn: model, tokenizer = lv.load(path).")
    found = record(model, text, tokenizer=tokenizer, block=block, head=head)
    values, keys = found.memory.shape[1:]
    drawn = sheet(
        10.2,
        6.0,
        "The memory as it is written, token by token",
        f"{found.layer}, block {block}, head {head}: {values} value channels (down) by {keys} key channels (across),"
        " the same size after every token.\nBlue above zero, orange below.",
    )
    _strip(drawn, theme, found)
    _curve(place(drawn, 0.95, 3.6, 8.9, 1.55), theme, found)
    return drawn


def _strip(drawn: Any, theme: Theme, found: Recording) -> None:
    shown = snapshots(len(found.tokens))
    # A few strong entries would leave the rest without color.
    limit = max(found.memory[shown].abs().quantile(0.995).item(), 1e-12)
    for column, step in enumerate(shown):
        axes = place(drawn, 0.35 + 1.2 * column, 1.5, 1.1, 1.3)
        axes.imshow(found.memory[step].numpy(), cmap=theme.signed(), vmin=-limit, vmax=limit, aspect="auto")
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(True)
            spine.set_edgecolor(theme.frame)
        axes.set_title(found.tokens[step], size=10, weight="bold", pad=4, parse_math=False)
        axes.set_xlabel(f"{step + 1}", size=8.5, color=theme.quiet, labelpad=3)


def _curve(axes: Any, theme: Theme, found: Recording) -> None:
    steps = range(1, len(found.tokens) + 1)
    axes.bar(steps, found.change.numpy(), width=0.7, color=theme.orange_tint)
    axes.plot(steps, found.norm.numpy(), color=theme.blue, linewidth=2.2, solid_capstyle="round")
    shown = snapshots(len(found.tokens))
    axes.plot(
        [step + 1 for step in shown],
        found.norm[shown].numpy(),
        "o",
        color=theme.blue,
        markerfacecolor=theme.ground,
        markeredgewidth=1.6,
        markersize=5,
    )
    labelled = list(range(len(found.tokens))) if len(found.tokens) <= LABELS else shown
    axes.set_xticks(
        [step + 1 for step in labelled],
        [found.tokens[step] for step in labelled],
        parse_math=False,
        size=9,
        rotation=90 if any(len(found.tokens[step]) > 1 for step in labelled) else 0,
    )
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(0.4, len(found.tokens) + 0.6)
    axes.set_ylim(0, 1.12 * max(found.norm.max().item(), 1e-12))
    axes.text(0, 1.06, "norm of the memory", transform=axes.transAxes, color=theme.blue, weight="bold", va="bottom")
    axes.text(
        0.2,
        1.06,
        "how much the token changed it",
        transform=axes.transAxes,
        color=theme.orange,
        weight="bold",
        va="bottom",
    )
