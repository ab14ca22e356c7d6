"""Diagonal-plus-low-rank systems in discrete time, and their powers without a dense matrix.

The continuous A = diag(Lambda) - P^H Q, with P and Q (r, n), is discretized by the bilinear rule, which keeps its
shape: A_bar = diag(d) + U^T W. So are its powers, the rank doubling as the exponent does, and a power costs a vector
O(n rank) where a dense matrix costs O(n^2).

With `conjugates` the modes given are half of them: the conjugate of each, with all its entries, is implied, so that the
system is real. Vectors over the modes are then kept as 2 n real numbers, and all that is not the diagonal is real.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int, Shaped
from torch import Tensor


class DiscreteDPLR(NamedTuple):
    """One step, `x_t = (diag(decay) + left^T right) x_{t-1} + write u_t`; left, right (.., r, n)."""

    decay: Complex[Tensor, "*#rows n"]
    left: Complex[Tensor, "*#rows r n"]
    right: Complex[Tensor, "*#rows r n"]
    write: Complex[Tensor, "*#rows n"]
    conjugates: bool


class Power(NamedTuple):
    """A power of the step as a map of flattened row vectors, `x -> x decay + (x right^T) left`.

    `decay` is complex (.., n); left and right (.., R, m) with m = n complex numbers or 2 n real ones, as `flat` has it.
    """

    decay: Tensor
    left: Tensor
    right: Tensor

    def __call__(self, x: Shaped[Tensor, "*#rows q m"]) -> Shaped[Tensor, "*#rows q m"]:
        """The power on each of q vectors: O(n R) a vector."""
        return fade(x, self.decay) + (x @ self.right.mT) @ self.left

    def squared(self) -> "Power | DensePower":
        """The same map twice: of twice the rank, or a matrix where that is more than full."""
        if self.left.shape[-2] >= self.left.shape[-1]:
            eye = torch.eye(self.left.shape[-1], dtype=self.left.dtype, device=self.left.device)
            return DensePower(self(eye)).squared()
        left = torch.cat([self(self.left), self.left], -2)
        right = torch.cat([self.right, fade(self.right, self.transposed.decay)], -2)
        return Power(self.decay.square(), left, right)

    @property
    def transposed(self) -> "Power":
        """The same power on what reads the state, `flat_reader` of it, from the other side."""
        decay = self.decay if self.left.is_complex() else self.decay.conj()
        return Power(decay, self.right, self.left)

    def to(self, dtype: torch.dtype) -> "Power":
        """The same map for vectors of another real or complex dtype."""
        return Power(
            self.decay.to(torch.promote_types(dtype, torch.complex64)), self.left.to(dtype), self.right.to(dtype)
        )


class DensePower(NamedTuple):
    """A power that has no low rank left, `x -> x matrix`."""

    matrix: Tensor

    def __call__(self, x: Shaped[Tensor, "*#rows q m"]) -> Shaped[Tensor, "*#rows q m"]:
        """The power on each of q vectors: O(n^2) a vector."""
        return x @ self.matrix

    def squared(self) -> "DensePower":
        """The same map twice."""
        return DensePower(self.matrix @ self.matrix)

    @property
    def transposed(self) -> "DensePower":
        """The same power on what reads the state."""
        return DensePower(self.matrix.mT)

    def to(self, dtype: torch.dtype) -> "DensePower":
        """The same map for vectors of another dtype."""
        return DensePower(self.matrix.to(dtype))


Powers = Sequence[Power | DensePower]


def bilinear(
    Lambda: Complex[Tensor, "*#rows n"],
    P: Complex[Tensor, "*#rows r n"],
    B: Shaped[Tensor, "*#rows n"],
    step: Float[Tensor, "*#rows"],
    *,
    Q: Complex[Tensor, "*#rows r n"] | None = None,
    conjugates: bool = False,
) -> DiscreteDPLR:
    """One step of `x' = (diag(Lambda) - P^H Q) x + B u` by the bilinear rule, in complex128. Q is P where not given.

        A_bar = (1 - step A / 2)^-1 (1 + step A / 2) = diag(d) + left^T right,     B_bar = (1 - step A / 2)^-1 step B
        D = 1 / (1 - step Lambda / 2),     d = 2 D - 1
        left^T = -2 D P^H (1 + (step / 2) Q D P^H)^-1,     right = (step / 2) Q D

    Leading axes broadcast. With Re Lambda <= 0 and Q = P the matrix inverted has an inverse of norm 1 at most, whatever
    the step. Cost O(r^2 n).
    """
    Lambda, P, B = (x.to(torch.complex128) for x in (Lambda, P, B))
    Q = P if Q is None else Q.to(torch.complex128)
    half = step.to(torch.float64).unsqueeze(-1) / 2
    D = 1 / (1 - half * Lambda)
    DP, right = P.conj() * D.unsqueeze(-2), Q * (half * D).unsqueeze(-2)
    total = _summed(right @ P.mH, conjugates)
    eye = torch.eye(total.shape[-1], dtype=total.dtype, device=total.device)
    solved = torch.linalg.solve((eye + total).mT, DP)
    erased = _summed(right @ B.unsqueeze(-1), conjugates).mT @ solved
    write = 2 * half * (D * B - erased.squeeze(-2))
    return DiscreteDPLR(2 * D - 1, -2 * solved, right, write, conjugates)


def _summed(x: Tensor, conjugates: bool) -> Tensor:
    """A sum over the modes given as one over all of them."""
    return (2 * x.real).to(x.dtype) if conjugates else x


def flat(x: Complex[Tensor, "*#rows n"], *, conjugates: bool) -> Shaped[Tensor, "*#rows m"]:
    """A vector over the modes as plain numbers: itself, or real and imaginary parts where conjugates are implied."""
    return torch.view_as_real(x.resolve_conj()).flatten(-2) if conjugates else x


def flat_reader(x: Complex[Tensor, "*#rows n"], *, conjugates: bool) -> Shaped[Tensor, "*#rows m"]:
    """A row that reads vectors over the modes, such that a plain dot product with `flat` of one is the whole sum."""
    return flat(2 * x.conj(), conjugates=conjugates) if conjugates else x


def unflat(x: Shaped[Tensor, "*#rows m"]) -> Complex[Tensor, "*#rows n"]:
    """The inverse of `flat`."""
    return x if x.is_complex() else torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())


def fade(x: Shaped[Tensor, "*#rows q m"], decay: Complex[Tensor, "*#rows n"]) -> Shaped[Tensor, "*#rows q m"]:
    """Flattened vectors with every mode decayed."""
    return flat(unflat(x) * decay.unsqueeze(-2), conjugates=not x.is_complex())


def powers(system: DiscreteDPLR, length: int) -> list["Power | DensePower"]:
    """The step itself, its square, its fourth power, ..., to about the square root of `length` steps.

        A^2m = diag(d^2m) + [left_m A^m^T, left_m]^T [right_m, right_m d^m]

    Each is twice the rank of the one before, until that is full: what follows are matrices. O(n length) together, as
    long as length <= n^2.
    """
    conjugates = system.conjugates
    left, right = flat(system.left, conjugates=conjugates), flat_reader(system.right, conjugates=conjugates)
    found: list[Power | DensePower] = [Power(system.decay, left, right)]
    while 4 ** (len(found) - 1) < length:
        found.append(found[-1].squared())
    return found


def after(powers: Powers, x: Shaped[Tensor, "*#rows q m"], count: int) -> Shaped[Tensor, "*#rows q m"]:
    """Vectors after `count` steps: the largest power as often as it fits, then the binary digits of what is left."""
    if torch.compiler.is_compiling():
        return _after_open(powers, x, count)
    whole, rest = divmod(count, 2 ** (len(powers) - 1))
    last = powers[-1]
    if isinstance(last, Power):
        for _ in range(whole):
            x = last(x)
        whole = 0
    # A matrix is squared at the cost of the square before; a low rank would cost more with each.
    while whole:
        x = last(x) if whole & 1 else x
        whole >>= 1
        last = last.squared() if whole else last
    for digit, power in enumerate(powers[:-1]):
        if rest >> digit & 1:
            x = power(x)
    return x


def _after_open(powers: Powers, x: Tensor, count: int) -> Tensor:
    """`after` for a compiler: the digits of the count are a tensor's, so that lengths share a graph."""
    exponent = 2 ** (len(powers) - 1)
    assert count <= exponent**2, "powers are made for the length"
    counts = torch.full(x.shape[-2:-1], count, device=x.device)
    for i in range(exponent):
        x = torch.where((i < counts // exponent)[:, None], powers[-1](x), x)
    return after_each(powers[:-1], x, counts % exponent)


def _runs(length: int, exponent: int) -> int:
    """How many runs of `exponent` steps hold a length; for a compiler as many as any length of these powers has."""
    return exponent if torch.compiler.is_compiling() else -(-length // exponent)


def after_each(
    powers: Powers, x: Shaped[Tensor, "*#rows q m"], counts: Int[Tensor, " q"]
) -> Shaped[Tensor, "*#rows q m"]:
    """`after` with a count for each of the q vectors, none above the exponent of the last power."""
    for digit, power in enumerate(powers):
        x = torch.where(((counts >> digit) & 1).bool()[:, None], power(x), x)
    return x


def run_up(powers: Powers, x: Shaped[Tensor, "*#rows q m"]) -> Shaped[Tensor, "*#rows c q m"]:
    """Vectors after 0, 1, ..., c - 1 steps, by doubling; c is the exponent of the last power."""
    count = x.shape[-2]
    for power in powers[:-1]:
        x = torch.cat([x, power(x)], -2)
    return x.unflatten(-2, (2 ** (len(powers) - 1), count))


def strides(power: Power | DensePower, x: Shaped[Tensor, "*#rows m"], count: int) -> Shaped[Tensor, "*#rows _ m"]:
    """A vector after 0, 1, ..., count - 1 applications of one power, one after the other."""
    rows = [x.unsqueeze(-2)]
    for _ in range(count - 1):
        rows.append(power(rows[-1]))
    return torch.cat(rows, -2)


def free_response(
    powers: Powers, reader: Shaped[Tensor, "*#rows m"], state: Shaped[Tensor, "*#rows q m"], length: int
) -> Shaped[Tensor, "*#rows q _"]:
    """What q states are read as over the steps to come without input, `C A_bar^(l+1) x` for l below `length`.

    Two levels: rows `C A_bar^(i c)` times columns `A_bar^(j+1) x`. Arguments flattened, and powers of their dtype;
    O(n length) a state.
    """
    exponent = 2 ** (len(powers) - 1)
    columns = run_up(powers, powers[0](state))
    rows = strides(powers[-1].transposed, reader, _runs(length, exponent))
    read = torch.einsum("...gm,...cqm->...qgc", rows, columns)
    return read.flatten(-2)[..., :length]


def last_state(
    powers: Powers,
    write: Shaped[Tensor, "*#rows m"],
    u: Shaped[Tensor, "*#rows q t"],
    state: Shaped[Tensor, "*#rows q m"],
    counts: Int[Tensor, " q"] | None = None,
) -> Shaped[Tensor, "*#rows q m"]:
    """The states after q inputs, `A_bar^t x + sum_l A_bar^(t-1-l) B_bar u_l`; where given, `counts` of them are real.

    What stands behind the real ones must be zero. Two levels: each run of c inputs through the columns `A_bar^j B_bar`,
    then from run to run by `A_bar^c`. Arguments flattened, and powers of their dtype; O(n length) a state.
    """
    length = u.shape[-1]
    exponent = 2 ** (len(powers) - 1)
    runs = _runs(length, exponent)
    if not length:
        return state
    if counts is None and torch.compiler.is_compiling():
        counts = torch.full(u.shape[-2:-1], length, device=u.device)
    u = F.pad(u, (runs * exponent - length, 0)) if counts is None else _at_the_end(u, counts, runs * exponent)
    columns = run_up(powers, write.unsqueeze(-2)).squeeze(-2).flip(-2)
    writes = (u.unflatten(-1, (runs, exponent)).flatten(-3, -2) @ columns).unflatten(-2, (-1, runs)).unbind(-2)
    if counts is None:
        found = after(powers, state, length - (runs - 1) * exponent) + writes[0]
        for written in writes[1:]:
            found = powers[-1](found) + written
        return found
    # A sequence of fewer runs comes in later, after as many steps as its first run has.
    own = -(counts // -exponent)
    met = after_each(powers, state, counts - (own - 1).clamp_min(0) * exponent)
    found = torch.zeros_like(state)
    for i, written in enumerate(writes):
        found = torch.where((own == runs - i)[:, None], met, powers[-1](found)) + written
    return torch.where((own == 0)[:, None], state, found)


def _at_the_end(u: Tensor, counts: Tensor, length: int) -> Tensor:
    """The first `counts` of each row's inputs moved to the end of a row of `length`, zeros before them."""
    place = torch.arange(length, device=u.device) - (length - counts[:, None])
    picked = u.gather(-1, place.clamp_min(0).expand(*u.shape[:-1], -1))
    return picked.masked_fill(place < 0, 0)
