"""What a tensor is but for its numbers: what can be found out once of many calls with other numbers."""

from collections.abc import Iterable
from operator import attrgetter

import torch
from torch import Tensor

# What is no subclass of a tensor, nor stands for one.
PLAIN = frozenset((Tensor, torch.nn.Parameter, type(None)))
_facts = attrgetter("dtype", "shape", "device")

# dtype, shape and device; None where there is no tensor.
Facts = tuple[tuple[torch.dtype, torch.Size, torch.device] | None, ...]


def facts(given: Iterable[Tensor | None]) -> Facts:
    """Dtype, shape and device of every tensor that is there."""
    return tuple([None if x is None else _facts(x) for x in given])


def plain(given: Iterable[object]) -> bool:
    """Whether all are tensors of torch's own, or None: then their facts are numbers, which nobody traces."""
    traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return not traced and PLAIN.issuperset(map(type, given))
