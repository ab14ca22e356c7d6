"""One line of a check: how far an answer is from the definition, and how far it may be."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

# Largest absolute difference over largest absolute reference; gradients sum over all steps and may be ten times or more
# as far off.
TOLERANCES = {
    ("output", torch.float64): 1e-12,
    ("output", torch.float32): 1e-5,
    ("gradient", torch.float64): 1e-10,
    ("gradient", torch.float32): 1e-4,
}


class Row(NamedTuple):
    """The distance of one layer's `quantity` (output or gradient) from the definition, in one form and dtype."""

    layer: str
    form: str
    backend: str
    dtype: str
    quantity: str
    difference: float
    tolerance: float
    ok: bool


def ways(forms: Iterable[str], *, kernel: bool) -> list[tuple[str, str]]:
    """Every form by torch, then the kernel's, as (form, backend)."""
    return [(form, "torch") for form in forms] + ([("recurrent", "cpu")] if kernel else [])


def row(
    way: tuple[str, str], layer: str, dtype: torch.dtype, quantity: str, difference: float, *, slack: float = 1
) -> Row:
    """A row that is fine where the difference, which is no NaN, is within the tolerance times `slack`."""
    tolerance = TOLERANCES[quantity, dtype] * slack
    name = str(dtype).removeprefix("torch.")
    return Row(layer, *way, name, quantity, difference, tolerance, difference <= tolerance)


def distance(came: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """Largest absolute difference over largest absolute reference, the worst of several tensors; NaN wins over all."""
    found = []
    for one, other in zip(came, wanted, strict=True):
        wide = other.to(torch.complex128 if other.is_complex() else torch.float64)
        scale = wide.abs().max().clamp_min(torch.finfo(torch.float32).tiny)
        found.append((one.to(wide.dtype) - wide).abs().max() / scale)
    return torch.stack(found).max().item()
