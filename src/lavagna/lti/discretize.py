"""From continuous time to steps: the rules that turn `x' = A x + B u` into `x_t = Ab x_{t-1} + Bb u_t`."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor

from lavagna.lti.exponential import expm, phi1

METHODS = ("zoh", "bilinear", "euler", "backward_euler", "mamba")
STRUCTURES = ("dense", "diagonal")
# Above this many rows torch's batched solver on several CPU threads gives errors or wrong numbers (pytorch#142815,
# from 151 on): larger matrices are inverted one after the other, each by all threads.
LARGE = 128

Step = int | float | Float[Tensor, "..."]


class Discrete(NamedTuple):
    """The system of one step, `x_t = A x_{t-1} + B u_t`."""

    A: Tensor
    B: Tensor


class Trapezoid(NamedTuple):
    """One step of `x_t = alpha x_{t-1} + beta u_{t-1} + gamma u_t`; the Bs are inside beta and gamma."""

    alpha: Tensor
    beta: Tensor
    gamma: Tensor


def discretize(
    A: Shaped[Tensor, "..."], B: Shaped[Tensor, "..."], step: Step, method: str, *, structure: str | None = None
) -> Discrete:
    """The system of one step of length `step` under a rule; with `z = step A`, dense or diagonal:

    | method | Ab | Bb |
    |---|---|---|
    | `zoh` | e^z | step phi1(z) B, exact for an input that is constant over the step |
    | `bilinear` | (1 - z/2)^-1 (1 + z/2) | (1 - z/2)^-1 step B |
    | `euler` | 1 + z | step B |
    | `backward_euler` | (1 - z)^-1 | (1 - z)^-1 step B |
    | `mamba` | e^z | step B |

    `A` is dense (.. n n) or diagonal (.. n); `B` is a vector (.. n) or a matrix (.. n m). `structure` says what `A` is;
    without it, a square pair of last axes is dense, also where n diagonal systems of n modes were meant, and everything
    else diagonal; several square matrices whose shape `B` repeats are refused. `B` is a matrix when it has as many axes
    as a dense `A`, or one more than a diagonal one; else a vector. Leading axes broadcast. `step`, a number or a
    tensor, has leading axes only, and may bring new ones; a step for each mode is `A * step, B * step`, a step of 1.
    Both `A` and `B` may be without axes, a single mode.

    Real or complex, float32 or float64, kept; singular `A`, zero eigenvalues and tiny steps are exact, and gradients
    finite. Raises ValueError on an unknown method or shapes that don't fit. Dense: O(n^3).
    Sources: Gu et al. 2021, arXiv 2110.13985; Gu and Dao 2023, arXiv 2312.00752, for `mamba`.

    >>> Ab, Bb = discretize(torch.zeros(1), torch.ones(1), 0.25, "zoh")
    >>> (Ab.item(), Bb.item())
    (1.0, 0.25)
    """
    if method not in METHODS:
        raise ValueError(f"discretize: method must be one of {', '.join(METHODS)}, but came as {method!r}.")
    if A.ndim == B.ndim == 0:
        return Discrete(*(part[..., 0] for part in discretize(A[None], B[None], step, method, structure="diagonal")))
    system = _scaled("discretize", A, B, step, structure)
    Ab, Bb = (_dense if system.dense else _diagonal)(system.z, system.write, method)
    return Discrete(Ab, Bb.squeeze(-1) if system.vector else Bb)


def exponential_trapezoid(
    A: Shaped[Tensor, "..."], B: Shaped[Tensor, "..."], step: Step, lam: Step, *, structure: str | None = None
) -> Trapezoid:
    """Mamba-3's rule: the exponential for the state, a trapezoid of weight `lam` for the input.

    `alpha = e^(step A)`, `beta = (1 - lam) step alpha B`, `gamma = lam step B`. `lam = 1` is `discretize(.., "mamba")`;
    1/2 is the trapezoid of second order. Shapes, dtypes and errors as for `discretize`; `lam` has those of `step`, and
    a diagonal `A` may have a last axis of 1 for one decay over all of `B`.
    Source: Lahoti et al. 2026, Mamba-3.

    >>> alpha, beta, gamma = exponential_trapezoid(torch.zeros(1), torch.ones(1), 0.5, 0.5)
    >>> (alpha.item(), beta.item(), gamma.item())
    (1.0, 0.25, 0.25)
    """
    if A.ndim == B.ndim == 0:
        parts = exponential_trapezoid(A[None], B[None], step, lam, structure="diagonal")
        return Trapezoid(*(part[..., 0] for part in parts))
    system = _scaled("exponential_trapezoid", A, B, step, structure)
    late = _behind(lam, system.z, 2)
    Ab, write = (_dense if system.dense else _diagonal)(system.z, system.write, "mamba")
    faded = Ab @ ((1 - late) * write).to(Ab) if system.dense else Ab[..., None] * ((1 - late) * write)
    parts = faded, late * write
    return Trapezoid(Ab, *(part.squeeze(-1) if system.vector else part for part in parts))


class _Scaled(NamedTuple):
    """`z = step A`, and `step B` as a matrix (.. n m) with the leading axes of both; how they are to be read."""

    z: Tensor
    write: Tensor
    dense: bool
    vector: bool


def _scaled(call: str, A: Tensor, B: Tensor, step: Step, structure: str | None) -> _Scaled:
    for name, x in (("A", A), ("B", B)):
        # A step in the dtype of whole numbers would be none at all.
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(f"{call}: {name} must be real or complex floating, but came as {x.dtype}. Use .double().")
    dense = _is_dense(call, A, B, structure)
    axes = 2 if dense else 1
    vector = B.ndim <= A.ndim - axes + 1
    n, write = A.shape[-1], B[..., None] if vector else B
    try:
        z, write = _behind(step, A, axes) * A, _behind(step, A, 2) * write
        fits = write.shape[-2] == n or (n == 1 and not dense)
        leading = torch.broadcast_shapes(z.shape[:-axes], write.shape[:-2])
    except (RuntimeError, IndexError):
        z, fits, leading = A, False, ()
    if not fits or B.ndim > A.ndim - axes + 2:
        came = tuple(step.shape) if isinstance(step, Tensor) else step
        raise ValueError(
            f"{call}: a {STRUCTURES[not dense]} A {tuple(A.shape)} needs a B (.. {n}) or (.. {n} m) and a step with"
            f" leading axes only, but B came as {tuple(B.shape)} and step as {came}."
        )
    return _Scaled(z.expand(*leading, *A.shape[-axes:]), write.expand(*leading, *write.shape[-2:]), dense, vector)


def _is_dense(call: str, A: Tensor, B: Tensor, structure: str | None) -> bool:
    """Whether A is a matrix and not a diagonal, as `structure` or the shapes say; ValueError where neither does."""
    square = A.ndim > 1 and A.shape[-1] == A.shape[-2]
    # One square matrix is dense. Of several, a B of their shape may be n inputs or the vectors of n diagonals.
    if structure is None and square and A.ndim > 2 and B.shape[: A.ndim] == A.shape:
        raise ValueError(
            f"{call}: A {tuple(A.shape)} and B {tuple(B.shape)} may be a dense or a diagonal system."
            f" Say structure='dense' or structure='diagonal'."
        )
    if structure not in (None, *STRUCTURES) or A.ndim < 1 or (structure == "dense" and not square):
        raise ValueError(
            f"{call}: A must be dense (.. n n) or diagonal (.. n) and structure 'dense' or 'diagonal', but A came as"
            f" {tuple(A.shape)} and structure as {structure!r}."
        )
    return square if structure is None else structure == "dense"


def _behind(step: Step, like: Tensor, axes: int) -> Step:
    """A tensor of leading axes with axes of one behind them, in the precision of `like`; a number as it is."""
    if not isinstance(step, Tensor):
        return step
    return step.to(like.real.dtype)[(...,) + (None,) * axes]


def _diagonal(z: Tensor, write: Tensor, method: str) -> tuple[Tensor, Tensor]:
    if method == "euler":
        return 1 + z, write
    if method == "mamba":
        return z.exp(), write
    if method == "zoh":
        return z.exp(), phi1(z)[..., None] * write
    part = 0.5 if method == "bilinear" else 1.0
    inverse = (1 - part * z).reciprocal()
    return inverse * (1 + (1 - part) * z), inverse[..., None] * write


def _dense(z: Tensor, write: Tensor, method: str) -> tuple[Tensor, Tensor]:
    n = z.shape[-1]
    dtype = torch.promote_types(z.dtype, write.dtype)
    z, write = z.to(dtype), write.to(dtype)
    one = torch.eye(n, dtype=dtype, device=z.device)
    if method == "euler":
        return one + z, write
    if method == "mamba":
        return expm(z), write
    if method == "zoh":
        # The exponential of [[z, step B], [0, 0]] holds both, and never divides by an A that may be singular.
        both = F.pad(torch.cat([z, write], -1), (0, 0, 0, write.shape[-1]))
        Ab, Bb = expm(both)[..., :n, :].tensor_split([n], -1)
        return Ab, Bb
    part = 0.5 if method == "bilinear" else 1.0
    inverse, written = _inverted(one - part * z, write)
    # (1 - part z)^-1 (1 + (1 - part) z) needs no product: one inverse is all that a gradient has to keep.
    return (inverse - (1 - part) * one) / part, written


def _inverted(system: Tensor, write: Tensor) -> tuple[Tensor, Tensor]:
    """The inverses of many matrices at once, and their products with `write`."""
    if not system.is_cpu or system.shape[-1] <= LARGE or system.ndim < 3:
        inverse = torch.linalg.inv(system)
        return inverse, inverse @ write
    each = [torch.linalg.inv(one) for one in system.flatten(0, -3)]
    written = [inverse @ one for inverse, one in zip(each, write.flatten(0, -3), strict=True)]
    rows = system.shape[:-2]
    return torch.stack(each).unflatten(0, rows), torch.stack(written).unflatten(0, rows)
