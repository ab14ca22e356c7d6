"""How a diagonal system answers a text, in every form: what S4D, DSS and H3 have in common."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lavagna.algebra.transition import diagonal, finite
from lavagna.forms.convolution import convolve
from lavagna.lti.vandermonde import diagonal_kernel, diagonal_state
from lavagna.modules.pairs import complex_of, pairs_of
from lavagna.modules.steps import Steps


class Diagonal(NamedTuple):
    """A system of one step for each head, `S_t = S_{t-1} diag(exp(log_decay)) + u_t B^T`, read by `y_t = S_t C`.

    With `conjugates` only one mode of each conjugate pair is stored, and the answer is `2 Re y`; else it is `Re y`.
    All parts are float64 or complex128: an angle in float32, off by 1e-7, would be off by 1e-4 after a thousand steps.
    """

    log_decay: Shaped[Tensor, "h k"]
    B: Shaped[Tensor, "h k"]
    C: Shaped[Tensor, "h k"]
    conjugates: bool


def respond(
    call: str, system: Diagonal, u: Float[Tensor, "b t h v"], memory: Float[Tensor, "n h v k *pair"], steps: Steps
) -> tuple[Float[Tensor, "b t h v"], Float[Tensor, "n h v k *pair"]]:
    """The answer to each step given the memory before the first, and the memory after the last.

    `memory` holds complex numbers as pairs (n, h, v, k, 2), or real ones (n, h, v, k); it and the answer have the dtype
    of `u`. In the form "convolution" the answer is the kernel's convolution with `u` plus what the given memory says
    when nothing comes in; every other form is `lavagna.recur` in float64. All give the same numbers, with mask and
    packing too. Cost of the convolution O(b v h t log t + h k t). Where no form is asked for, a kernel of the whole, if
    there is one, goes from step to step in float64.
    """
    start = complex_of(memory) if memory.ndim == 5 else memory
    kernel = steps.fused("response", u, u, u)
    if kernel is not None:
        y, last = _stepped(kernel, system, u, start, steps)
    elif steps.convolves(call):

        def convolved(u: Tensor, counts: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
            return _convolved(system, u, None if steps.rows is None else counts, start, steps.fresh)

        y, last = steps.by_rows(convolved, u, start)
    else:
        q, k = (x.expand(*u.shape[:2], *x.shape) for x in (system.C, system.B))
        y, last = steps.recur(diagonal(system.log_decay[None, None]), q, k, u.double(), start)
        y = 2 * y.real if system.conjugates else y.real
    last = pairs_of(last) if memory.ndim == 5 else last.real
    return y.to(u.dtype), last.to(u.dtype)


def _stepped(
    kernel: Callable[..., tuple[Tensor, ...]], system: Diagonal, u: Tensor, start: Tensor, steps: Steps
) -> tuple[Tensor, Tensor]:
    """By the kernel, to which each value of a head is a channel with a system of its own."""
    C = 2 * system.C if system.conjugates else system.C
    parts = finite(system.log_decay).exp(), system.B, C
    dtype = torch.promote_types(system.log_decay.dtype, start.dtype)
    rows = (x.to(dtype).unsqueeze(1).expand(-1, u.shape[3], -1).flatten(0, 1) for x in parts)
    y, last = kernel(u.flatten(2), *rows, start.to(dtype).flatten(1, 2), real=steps.mask, offsets=steps.offsets)
    return y.unflatten(2, u.shape[2:]), last.unflatten(1, u.shape[2:])


def _convolved(system: Diagonal, u: Tensor, counts: Tensor | None, start: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
    """Rows (m, l, h, v) whose first `counts` steps are real, or all: what `respond` returns for them."""
    log_decay, length, pairs = system.log_decay, u.shape[1], system.conjugates
    u = u.movedim(1, -1)
    y = u
    if length:
        kernel = diagonal_kernel(system.C * system.B, log_decay, length, conjugates=pairs)
        y = convolve(u, kernel.real.to(u.dtype)[:, None])
    if not fresh:
        heard = system.C * log_decay.exp()
        heard = heard.to(torch.promote_types(u.dtype, torch.complex64) if heard.is_complex() else u.dtype)
        # One filter a row and value: in the working precision, unlike the kernel, which serves all rows.
        free = diagonal_kernel(heard[:, None] * start, log_decay[:, None], length, conjugates=pairs)
        y = y + free.real
    return y.movedim(-1, 1), diagonal_state(u, log_decay, system.B, start, counts)
