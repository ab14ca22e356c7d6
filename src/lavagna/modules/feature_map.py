"""Feature maps: what linear attention applies to queries and keys in place of the softmax's exponential."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor

from lavagna.modules.options import choice


def _elu_plus_one(x: Tensor) -> Tensor:
    # As elu(x) + 1 a small e^x would be the difference of two numbers near 1, and 0 from x = -17 on in float32.
    # Cast back, because under autocast an exponential comes in float32.
    return torch.where(x > 0, x + 1, x.clamp_max(0).exp().to(x.dtype))


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "elu_plus_one": _elu_plus_one,
    "relu": F.relu,
}
NEVER_NEGATIVE = ("elu_plus_one", "relu")


def feature_map(call: str, name: str) -> Callable[[Tensor], Tensor]:
    """The feature map of a name; raises ValueError on an unknown one."""
    choice(call, "feature_map", name, FEATURE_MAPS)
    return FEATURE_MAPS[name]


def dpfp(x: Shaped[Tensor, "*axes k"], nu: int) -> Shaped[Tensor, "*axes f"]:
    """The deterministic parameter-free projection: `r_i r_{i - j}` for r = [relu(x), relu(-x)] and j = 1 .. nu.

    2 nu k features, never negative, few of them not zero: of a pair of channels only the quadrant that x is in answers.
    Schlag, Irie and Schmidhuber 2021, arXiv 2102.11174, section 5.3.
    """
    r = torch.cat([F.relu(x), F.relu(-x)], -1)
    return torch.cat([r * r.roll(j, -1) for j in range(1, nu + 1)], -1)
