"""Feature maps: what linear attention applies to queries and keys in place of the softmax's exponential."""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "elu_plus_one": lambda x: F.elu(x) + 1,
    "relu": F.relu,
}
NEVER_NEGATIVE = ("elu_plus_one", "relu")


def feature_map(call: str, name: str) -> Callable[[Tensor], Tensor]:
    """The feature map of a name; raises ValueError on an unknown one."""
    if name not in FEATURE_MAPS:
        raise ValueError(f"{call}: feature_map must be one of {', '.join(FEATURE_MAPS)}, but came as {name!r}.")
    return FEATURE_MAPS[name]
