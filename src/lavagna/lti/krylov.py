"""Krylov matrices: every power of a dense matrix on one vector, by repeated doubling."""

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from lavagna.autocast import without_autocast


def krylov(A: Shaped[Tensor, "..."], B: Shaped[Tensor, "..."], length: int) -> Shaped[Tensor, "..."]:
    """The first `length` powers of a matrix on a vector, row l being A^l B, (.., length, n).

    [B, A B, A^2 B, ...] doubles with each squaring of A: the second half is A^m times the first. log2(length) products
    of matrices, O(n^3 log length + n^2 length) time and O(n length) memory besides the squares. Any dtype, which
    autocast leaves alone; the leading axes of A and B broadcast. Raises ValueError on a negative length or shapes that
    don't fit.

    >>> import torch
    >>> krylov(torch.tensor([[0.5]]), torch.tensor([1.0]), 4).squeeze(-1)
    tensor([1.0000, 0.5000, 0.2500, 0.1250])

    Gu et al. 2021, arXiv 2110.13985, appendix C.2.
    """
    if not isinstance(length, int) or isinstance(length, bool) or length < 0:
        raise ValueError(f"krylov: length must be an int >= 0, but came as {length!r}.")
    if A.ndim < 2 or not B.ndim or A.shape[-2] != A.shape[-1] or B.shape[-1] != A.shape[-1]:
        raise ValueError(
            f"krylov: A must be (.., n, n) and B (.., n), but came as {tuple(A.shape)} and {tuple(B.shape)}."
        )
    with without_autocast(A):
        return doubled(squares(A, length), B, length)


def squares(A: Shaped[Tensor, "*#rows n n"], length: int) -> list[Tensor]:
    """A, A^2, A^4, ... as far as powers below `length` need them; none for a length of 0 or 1."""
    found = []
    while 2 ** len(found) < length:
        found.append(found[-1] @ found[-1] if found else A)
    return found


def doubled(powers: list[Tensor], B: Shaped[Tensor, "*#rows n"], length: int) -> Shaped[Tensor, "..."]:
    """`krylov` where the squares of A are known: `powers` as `squares` gives them, for this length or a longer."""
    rows, compiling = B.unsqueeze(-2), torch.compiler.is_compiling()
    for power in powers:
        if not compiling and rows.shape[-2] >= length:
            break
        # Cut short here, a compiler would make another graph for whole powers of two.
        fresh = (rows if compiling else rows[..., : length - rows.shape[-2], :]) @ power.mT
        rows = torch.cat([rows.expand(*fresh.shape[:-2], -1, -1), fresh], -2)
    return rows[..., :length, :]


def raised(
    powers: list[Tensor], x: Shaped[Tensor, "*#rows q n"], counts: Int[Tensor, " q"] | int
) -> Shaped[Tensor, "*#rows q n"]:
    """A^count x for q vectors, each with a count of its own or all with one: a product for each of its binary digits.

    `powers` as `squares` gives them for a length above every count.
    """
    if isinstance(counts, int) and torch.compiler.is_compiling():
        # Digits known beforehand would make a graph of their own.
        counts = torch.full(x.shape[-2:-1], counts, device=x.device)
    for digit, power in enumerate(powers):
        if isinstance(counts, int):
            x = x @ power.mT if counts >> digit & 1 else x
        else:
            x = torch.where(((counts >> digit) & 1).bool()[:, None], x @ power.mT, x)
    return x
