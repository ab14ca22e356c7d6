"""Complex numbers kept as pairs of real ones, (..., 2): what parameters and states hold."""

import torch
from jaxtyping import Complex, Float
from torch import Tensor


def complex_of(pairs: Float[Tensor, "*axes 2"]) -> Complex[Tensor, "*axes"]:
    """The complex numbers that pairs (real, imaginary) stand for.

    >>> complex_of(torch.tensor([[3.0, 4.0]])).abs().tolist()
    [5.0]
    """
    # The view wants the two parts side by side; a parameter or a state may lie otherwise.
    return torch.view_as_complex(pairs.contiguous())


def pairs_of(z: Complex[Tensor, "*axes"]) -> Float[Tensor, "*axes 2"]:
    """The inverse of `complex_of`."""
    return torch.view_as_real(z.resolve_conj())
