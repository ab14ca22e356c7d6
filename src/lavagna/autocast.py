"""Products as precise as what enters them, inside `torch.autocast` too."""

import torch
from torch import Tensor


def without_autocast(x: Tensor) -> torch.autocast:
    """A context in which nothing on the device of `x` is taken to half precision."""
    # It refuses the meta device, where no number is computed anyway.
    return torch.autocast("cpu" if x.is_meta else x.device.type, enabled=False)
