"""S4's kernel: the generating function of a diagonal-plus-low-rank system, by Cauchy sums at the roots of unity."""

import math

import torch
from jaxtyping import Complex, Float, Shaped
from torch import Tensor

from lavagna.lti.cauchy_sums import cauchy_sums
from lavagna.lti.dplr import Powers, after, bilinear, flat_reader, powers, unflat

# The circle on which the generating function is taken has radius e^(-DAMPING / length): no pole of a system that
# doesn't grow is nearer than that, also where Re Lambda is 0. It costs a factor e^DAMPING of float64's last digit.
DAMPING = 1.0


def s4_kernel(
    Lambda: Shaped[Tensor, "..."],
    P: Shaped[Tensor, "..."],
    B: Shaped[Tensor, "..."],
    C: Shaped[Tensor, "..."],
    step: Float[Tensor, "..."] | float,
    length: int,
    *,
    Q: Shaped[Tensor, "..."] | None = None,
    conjugates: bool = False,
) -> Shaped[Tensor, "..."]:
    """The first `length` numbers of the filter of `A = diag(Lambda) - P^H Q` under the bilinear rule.

        K_l = C A_bar^l B_bar          A_bar = E (1 + step A / 2),   B_bar = E step B,   E = (1 - step A / 2)^-1

    `Lambda, P, B` are as `nplr` gives them, Q is P where not given, C is the true one: neither conjugated nor corrected
    for the length. Without `conjugates` the modes given are all there are, and K is complex; that of `nplr`'s modes
    with C V for a real C is real to rounding. With `conjugates` each mode, with its entries of P, B, C and Q, stands
    for itself and its conjugate, as the first half of `nplr`'s do; K is real and takes half the work. Leading axes
    broadcast, `step` (..), a number or a tensor, has them alone.

    With theta = pi k / length, s = damping / (2 length) + i theta, and the sums F_ab = sum_n a_n b_n / (2 sinh s - step
    cosh(s) Lambda_n), the generating function at e^(-2 s) has no pole at omega = -1, nor at modes on the axis:

        K^_k = step e^s (F_CB - step cosh s F_CP (1 + step cosh s F_QP)^-1 F_QB),    C (1 - e^(-damping) A_bar^length)
        standing for C, and K_l = e^(damping l / length) ifft(K^)_l.

    Any length, even or odd. Computed in complex128 whatever comes, and returned in the precision that came. Time
    O(n length), memory O(length) and a block of nodes, in the backward pass too; memory O(n length) for gradients of
    gradients and in `torch.func`. Raises ValueError on a length that isn't an int >= 0, or shapes that don't fit.

    >>> from lavagna.lti import nplr
    >>> Lambda, P, B, V = nplr("legs", 4)
    >>> C = torch.ones(4, dtype=V.dtype) @ V
    >>> whole = s4_kernel(Lambda, P, B, C, 0.1, 5)
    >>> half = s4_kernel(Lambda[:2], P[:, :2], B[:2], C[:2], 0.1, 5, conjugates=True)
    >>> torch.allclose(whole.real, half)
    True

    Gu, Goel and Re 2022, arXiv 2111.00396; tied P and Q: Goel et al. 2022, arXiv 2202.09729.
    """
    if not isinstance(length, int) or isinstance(length, bool) or length < 0:
        raise ValueError(f"s4_kernel: length must be an int >= 0, but came as {length!r}.")
    _check(Lambda, P, B, C, P if Q is None else Q)
    double = torch.float64 in (Lambda.real.dtype, B.real.dtype, C.real.dtype)
    Lambda, P, B, C, Q, step = _spread(Lambda, P, B, C, P if Q is None else Q, step)
    if not length:
        return _narrow(C[..., :0].real if conjugates else C[..., :0], double)
    found = powers(bilinear(Lambda, P, B, step, Q=Q, conjugates=conjugates), length)
    ended = read_after(found, C, length, conjugates=conjugates)
    return _narrow(kernel_between(Lambda, P, Q, B, C, step, length, ended, conjugates=conjugates), double)


def kernel_between(
    Lambda: Complex[Tensor, "*rows n"],
    P: Complex[Tensor, "*rows r n"],
    Q: Complex[Tensor, "*rows r n"],
    B: Complex[Tensor, "*rows n"],
    C: Complex[Tensor, "*rows n"],
    step: Float[Tensor, "*rows"],
    length: int,
    ended: Complex[Tensor, "*rows n"],
    *,
    conjugates: bool,
) -> Shaped[Tensor, "*rows length"]:
    """`s4_kernel` where `C A_bar^length` is known, all in double precision and of one shape."""
    C = C - math.exp(-DAMPING) * ended
    return _inverse(_generating(Lambda, P, B, C, Q, step, length, real=conjugates), length, real=conjugates)


def _narrow(x: Tensor, double: bool) -> Tensor:
    return x if double else x.to(torch.complex64 if x.is_complex() else torch.float32)


def _check(Lambda: Tensor, P: Tensor, B: Tensor, C: Tensor, Q: Tensor) -> None:
    named = {"Lambda": Lambda, "P": P, "B": B, "C": C, "Q": Q}
    deep = min(P.ndim, Q.ndim) > 1 and P.shape[-2] == Q.shape[-2] > 0
    if not deep or not Lambda.ndim or any(x.shape[-1:] != Lambda.shape[-1:] for x in named.values()):
        listed = ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
        raise ValueError(
            f"s4_kernel: Lambda, B and C must be (.., n), P and Q (.., r, n), but came as {listed}. "
            "A single vector P is P[None]."
        )


def _spread(Lambda: Tensor, P: Tensor, B: Tensor, C: Tensor, Q: Tensor, step: Tensor | float) -> tuple[Tensor, ...]:
    """All in complex128 (the step in float64), with the same leading axes."""
    step = torch.as_tensor(step, dtype=torch.float64, device=Lambda.device)
    leading = (
        [tuple(x.shape[:-1]) for x in (Lambda, B, C)] + [tuple(x.shape[:-2]) for x in (P, Q)] + [tuple(step.shape)]
    )
    try:
        rows = torch.broadcast_shapes(*leading)
    except RuntimeError:
        raise ValueError(
            "s4_kernel: the leading axes of Lambda, B, C, P, Q and the step must broadcast, but came as "
            f"{', '.join(map(str, leading))}."
        ) from None
    Lambda, B, C = (x.to(torch.complex128).expand(*rows, -1) for x in (Lambda, B, C))
    P, Q = (x.to(torch.complex128).expand(*rows, -1, -1) for x in (P, Q))
    return Lambda, P, B, C, Q, step.expand(rows)


def read_after(
    found: Powers, C: Complex[Tensor, "*rows n"], length: int, *, conjugates: bool
) -> Complex[Tensor, "*rows n"]:
    """`C A_bar^length`, from the powers of a system."""
    back = [power.transposed for power in found]
    reader = after(back, flat_reader(C, conjugates=conjugates).unsqueeze(-2), length).squeeze(-2)
    return unflat(reader).conj() / 2 if conjugates else reader


def _generating(
    Lambda: Tensor, P: Tensor, B: Tensor, C: Tensor, Q: Tensor, step: Tensor, length: int, *, real: bool
) -> Tensor:
    """The generating function at the nodes (.., k): half of them and one where the kernel is real."""
    nodes = torch.arange(length // 2 + 1 if real else length, dtype=torch.float64, device=Lambda.device)
    s = torch.complex(torch.full_like(nodes, DAMPING / (2 * length)), math.pi / length * nodes)
    readers, writers = torch.cat([C.unsqueeze(-2), Q], -2), torch.cat([B.unsqueeze(-2), P.conj()], -2)
    products = (readers.unsqueeze(-2) * writers.unsqueeze(-3)).flatten(-3, -2).mT
    sums = cauchy_sums(products, step.unsqueeze(-1) * Lambda, 2 * s.sinh(), s.cosh(), conjugates=real)
    table = sums.unflatten(-1, (readers.shape[-2], -1))
    reach = (step.unsqueeze(-1) * s.cosh())[..., None, None]
    # One rank after the other leaves the table: (A_(i-1) - P_i^H Q_i)^-1 from A_(i-1)^-1, all read and written alike.
    while table.shape[-1] > 1:
        inner = table[..., :-1, -1:] * reach / (1 + reach * table[..., -1:, -1:])
        table = table[..., :-1, :-1] - inner * table[..., -1:, :-1]
    return table[..., 0, 0] * step.unsqueeze(-1) * s.exp()


def _inverse(generating: Tensor, length: int, *, real: bool) -> Tensor:
    kernel = torch.fft.irfft(generating, n=length) if real else torch.fft.ifft(generating)
    place = torch.arange(length, dtype=torch.float64, device=kernel.device)
    return kernel * (DAMPING / length * place).exp()
