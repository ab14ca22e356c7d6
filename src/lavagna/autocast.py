"""Products as precise as what enters them, inside `torch.autocast` too."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def without_autocast(x: Tensor) -> AbstractContextManager:
    """A context in which nothing on the device of `x` is taken to half precision."""
    # It refuses the meta device, where no number is computed anyway.
    device = "cpu" if x.is_meta else x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
