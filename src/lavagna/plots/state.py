"""The memory of a trained model as it is written, token by token."""

from functools import cache
from typing import Any

from torch import nn

from lavagna.data import AbstractTokenizer, Tokenizer
from lavagna.plots.recording import Recording, record
from lavagna.plots.sheet import place, sheet
from lavagna.plots.theme import Theme

TEXT = "def fade(memory):\n    return 0.9 * memory"
LABELS = 48
LONGEST = 8
VISIBLE = {" ": "␣", "\n": "⏎", "\t": "⇥"}


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


def figure(
    theme: Theme,
    *,
    model: nn.Module | None = None,
    tokenizer: AbstractTokenizer | None = None,
    text: str = TEXT,
    block: int = 0,
    head: int = 0,
) -> Any:
    """A strip of memories above, the norm and the change of each token below."""
    if model is None:
        raise ValueError("plots.state: a model is needed, whose memory is drawn: model, tokenizer = lv.load(path).")
    tokenizer = tokenizer or Tokenizer.bytes()
    found = record(model, text, tokenizer=tokenizer, block=block, head=head)
    tokens = [visible(tokenizer.decode([id])) for id in found.ids]
    drawn = sheet(
        10.2,
        6.0,
        "The memory as it is written, token by token",
        f"{found.layer}, block {block}, {found.axes}, the same size after every token.\nBlue above zero, orange below.",
    )
    _strip(drawn, theme, found, tokens)
    _curve(place(drawn, 0.95, 3.6, 8.9, 1.55), theme, found, tokens)
    return drawn


def _strip(drawn: Any, theme: Theme, found: Recording, tokens: list[str]) -> None:
    # A few strong entries would leave the rest without color.
    limit = max(found.memory.abs().quantile(0.995).item(), 1e-12)
    for column, (step, memory) in enumerate(zip(found.shown, found.memory.numpy(), strict=True)):
        axes = place(drawn, 0.35 + 1.2 * column, 1.5, 1.1, 1.3)
        axes.imshow(memory, cmap=theme.signed(), vmin=-limit, vmax=limit, aspect="auto")
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(True)
            spine.set_edgecolor(theme.frame)
        axes.set_title(tokens[step], size=10, weight="bold", pad=4, parse_math=False)
        axes.set_xlabel(f"{step + 1}", size=8.5, color=theme.quiet, labelpad=3)


def _curve(axes: Any, theme: Theme, found: Recording, tokens: list[str]) -> None:
    steps = range(1, len(tokens) + 1)
    axes.bar(steps, found.change.numpy(), width=0.7, color=theme.orange_tint)
    axes.plot(steps, found.norm.numpy(), color=theme.blue, linewidth=2.2, solid_capstyle="round")
    axes.plot(
        [step + 1 for step in found.shown],
        found.norm[found.shown].numpy(),
        "o",
        color=theme.blue,
        markerfacecolor=theme.ground,
        markeredgewidth=1.6,
        markersize=5,
    )
    labelled = list(range(len(tokens))) if len(tokens) <= LABELS else found.shown
    axes.set_xticks(
        [step + 1 for step in labelled],
        [tokens[step] for step in labelled],
        parse_math=False,
        size=9,
        rotation=90 if any(len(tokens[step]) > 1 for step in labelled) else 0,
    )
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(0.4, len(tokens) + 0.6)
    axes.set_ylim(0, 1.12 * max(found.norm.max().item(), found.change.max().item(), 1e-12))
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
