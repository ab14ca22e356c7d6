"""A signal compressed while it passes, and told again from what was kept of it."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lavagna.autocast import without_autocast
from lavagna.lti.basis import basis, span
from lavagna.lti.discretize import METHODS, discretize
from lavagna.lti.hippo import check, hippo

# Matrices of this many steps are made at a time: solved in one batch, and few enough for any length.
BLOCK = 128


def online_hippo(
    f: Shaped[Tensor, "..."], n: int, *, kind: str = "legs", method: str = "bilinear", step: float | None = None
) -> Shaped[Tensor, "... n"]:
    """The n coefficients of the past after each sample of a signal (.., t): a memory of one size for any length.

    `legs` follows `x' = (A x + B f) / t`, whose step t, counted from 1, needs no step size: with `discretize`'s methods
    at the step `1/t`, or for those with an exponential (`zoh`, `mamba`) `log((t+1)/t)`, which is `1/t` integrated. As
    the past grows it is only stretched, so that dilating the signal dilates the coefficients. The clock of `euler`
    starts with the first sample, that of `bilinear` half a sample earlier and that of the others a whole one; the first
    sample is taken to be heard already then, so that the memory after it is that of a constant. (Silence would pull the
    oldest end to zero, and over 1000 samples more than double the error.) `euler` is unstable while t < n.

    The other kinds slide along the past with a constant `step`. Left out, it is that at which `reconstruct`'s times
    from 0 to 1 are the whole signal, 2 / t for `legt` and `fout` and 2n / t for `lagt`; for a window of L samples give
    2 / L or 2n / L.

    Matrices are made in float64; sums are of `f`'s dtype, float32 at least. Differentiable in `f`. Cost O(t n^3) once
    and O(t n^2) for each signal. Raises ValueError on an unknown kind or method, on a step for `legs`, and on integers.
    Source: Gu et al. 2020, arXiv 2008.07669.

    >>> online_hippo(torch.tensor([1.0, 2.0, 6.0]), 1, method="euler").flatten().tolist()  # the mean so far
    [1.0, 1.5, 3.0]
    """
    check("online_hippo", kind, n)
    if method not in METHODS:
        raise ValueError(f"online_hippo: method must be one of {', '.join(METHODS)}, but came as {method!r}.")
    if kind == "legs" and step is not None:
        raise ValueError(f"online_hippo: legs has the step 1/t and takes none, but step came as {step}. Leave it out.")
    if not f.ndim or not (f.is_floating_point() or f.is_complex()):
        raise ValueError(f"online_hippo: f must be floating (.., t), but came as {tuple(f.shape)} {f.dtype}.")
    dtype = torch.promote_types(f.dtype, torch.float32)
    samples = f.to(dtype)
    x = samples.new_zeros(*f.shape[:-1], n)
    if kind == "legs":
        # The clock of most rules starts before the first sample: what is heard there is that sample, and not silence.
        x = torch.cat([samples[..., :1], x[..., 1:]], -1)
    states = []
    steps = _steps(kind, n, f.shape[-1], method, step, like=x)
    with without_autocast(x):
        for sample, (A, B) in zip(samples.unbind(-1), steps, strict=True):
            x = x @ A.mT + sample[..., None] * B
            states.append(x)
    return torch.stack(states, -2).to(f.dtype) if states else f.new_zeros(*f.shape, n)


def reconstruct(
    c: Float[Tensor, "*axes n"], times: Float[Tensor, "..."] | Sequence[float], *, kind: str = "legs"
) -> Float[Tensor, "*axes _"]:
    """The past that coefficients stand for, at `times` from 0, the oldest, to 1, now: their sum times the basis.

    For `legs` that is the whole past, for `legt` and `fout` the last window, for `lagt` the last 2n units of its time.
    Samples of a signal of length t lie at `(i + 1/2) / t`, i from 0. Differentiable in `c`, of its dtype, O(m n).

    >>> c = online_hippo(torch.linspace(0, 1, 1000).double(), 8)[-1]
    >>> bool((reconstruct(c, [0.25, 0.5, 0.75]) - torch.tensor([0.25, 0.5, 0.75])).abs().max() < 2e-3)
    True
    """
    check("reconstruct", kind, c.shape[-1])
    when = torch.as_tensor(times, dtype=torch.float64, device=c.device)
    if when.ndim != 1:
        raise ValueError(f"reconstruct: times must be a list or have one axis, but came as {tuple(when.shape)}.")
    with without_autocast(c):
        return c @ basis(kind, c.shape[-1], when).to(c).mT


def _steps(
    kind: str, n: int, length: int, method: str, step: float | None, *, like: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """The system of each step, one after the other, made in float64 and then as `like` is."""
    A, B = hippo(kind, n)
    if kind != "legs":
        size = span(kind, n) / max(length, 1) if step is None else step
        Ab, Bb = (part.to(like) for part in discretize(A, B, size, method, structure="dense"))
        yield from ((Ab, Bb) for _ in range(length))
        return
    for first in range(1, length + 1, BLOCK):
        t = torch.arange(first, min(first + BLOCK, length + 1), dtype=torch.float64)
        size = t.reciprocal().log1p() if method in ("zoh", "mamba") else t.reciprocal()
        parts = discretize(A, B, size, method, structure="dense")
        yield from zip(*(part.to(like) for part in parts), strict=True)
