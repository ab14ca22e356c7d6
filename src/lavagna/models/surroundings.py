"""What stands around a mixer in its block: the paper's choice, and what a configuration puts in its place."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from lavagna.layers.layer import Layer
from lavagna.modules.feed_forward import FEED_FORWARDS
from lavagna.modules.norm import NORMS

PLACES = ("pre", "post")
CHOICES = {"norm": tuple(NORMS), "norm_place": PLACES, "mlp": (*FEED_FORWARDS, None)}


class Surroundings(NamedTuple):
    """The kind of a block's norms and whether they stand before or behind its halves; the second half, and its width.

    `mlp` None, and `mlp_width` 0, where the mixer is the whole block.
    """

    norm: str
    norm_place: str
    mlp: str | None
    mlp_width: int

    def __str__(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())


def surroundings(mixer: Layer, factor: float | None, chosen: Mapping[str, Any]) -> Surroundings:
    """What a block has around its mixer: what is `chosen`, else what the width's `factor` says, else the paper's.

    A width that a factor gives is rounded up to a multiple of 16. Raises ValueError where a width is chosen for a net
    that there is not, or a net for which no width is left.
    """
    # A factor asks for a feed-forward net, also where the paper has none.
    paper = mixer.block_mlp if factor is None else mixer.block_mlp or "swiglu"
    mlp = chosen.get("mlp", paper)
    factor = mixer.block_mlp_factor if factor is None else factor
    width = chosen.get("mlp_width", -(-round(factor * mixer.d_model) // 16) * 16)
    if mlp is None and "mlp_width" in chosen:
        none = "mlp is None" if "mlp" in chosen else f"that of {mixer.name} has no net unless mlp names one"
        raise ValueError(f"block: mlp_width is {width}, but {none}. Leave out mlp_width, or name a net with mlp.")
    if chosen.get("mlp") and not width:
        raise ValueError(f"block: mlp is {mlp!r}, but mlp_factor=0 leaves it no width. Give mlp_width, or mlp=None.")
    if mlp is None or not width:
        mlp, width = None, 0
    return Surroundings(chosen.get("norm", mixer.block_norm), chosen.get("norm_place", "pre"), mlp, width)


def refuse(chosen: Mapping[str, Any]) -> None:
    """Raises ValueError on a key or a value that no block can have."""
    known = [*CHOICES, "mlp_width"]
    unknown = [str(key) for key in chosen if key not in known]
    if unknown:
        raise ValueError(f"block has no {', '.join(unknown)}; it has {', '.join(known)}.")
    for key, legal in CHOICES.items():
        if key in chosen and chosen[key] not in legal:
            raise ValueError(f"block: {key} must be one of {', '.join(map(str, legal))}, but came as {chosen[key]!r}.")
    width = chosen.get("mlp_width", 1)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise ValueError(f"block: mlp_width must be an int >= 1, but came as {width!r}. For no net use mlp=None.")
