"""sLSTM's cells on a CPU: gates, cells and the mixing within a head in one loop over the steps.

`lavagna::slstm` returns what is shown and what is remembered after the last step, then, for its backward pass, each
step's gates and cells, and what was shown before it: with that, the gradient of the mixing is one product of matrices.
The stabilizer is a unit of measure: only the one that was given has a gradient, that of the cells given, and that which
is returned hands its own on where no step lies between.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.derivatives import apart, gradients_again
from lavagna.kernels.cpu.operands import (
    ELEMENTS,
    NOTHING,
    OPERATORS,
    Block,
    arrived,
    dense,
    differentiable,
    each_dense,
    each_flat,
    operand,
    pointer,
    threads,
    vector_bytes,
)
from lavagna.kernels.cpu.planned import New, Operator, run
from lavagna.kernels.cpu.stepwise import stepwise

# Numbers that a step keeps of each cell for its gradients.
PLACES = 7

OPERATORS.define(
    "slstm(Tensor i, Tensor f, Tensor z, Tensor o, Tensor bias, Tensor mixing, Tensor hidden, Tensor cell, "
    "Tensor normalizer, Tensor stabilizer, Tensor? mask, Tensor? offsets, bool keep) "
    "-> (Tensor shown, Tensor hidden, Tensor cell, Tensor normalizer, Tensor stabilizer, Tensor kept, Tensor met)"
)
OPERATORS.define(
    "slstm_backward(Tensor d_shown, Tensor d_hidden, Tensor d_cell, Tensor d_normalizer, Tensor d_stabilizer, "
    "Tensor mixing, Tensor cell, Tensor normalizer, Tensor? mask, Tensor? offsets, Tensor kept) "
    "-> (Tensor given, Tensor hidden, Tensor cell, Tensor normalizer, Tensor stabilizer)"
)


class _Sizes(NamedTuple):
    """What a call's block begins with."""

    rows: int
    steps: int
    heads: int
    size: int
    padded: int
    threads: int

    @classmethod
    def of(cls, x: Tensor, offsets: Tensor | None, wide: torch.dtype) -> "_Sizes":
        batch, steps, heads, size = x.shape
        lanes = vector_bytes() // wide.itemsize
        count = threads(4 * batch * steps * heads * size * size)
        rows = batch if offsets is None else len(offsets) - 1
        return cls(rows, steps, heads, size, -(-size // lanes) * lanes, count)


def _settled(i, f, z, o, bias, mixing, hidden, cell, normalizer, stabilizer, mask, offsets, keep):
    fixed = each_flat(bias, mixing, hidden, cell, normalizer, stabilizer, dtype=cell.dtype)
    return *each_dense(i, f, z, o), *fixed, *each_flat(mask, offsets), keep


def _room(i, f, z, o, bias, mixing, hidden, cell, normalizer, stabilizer, mask, offsets, keep):
    wide, masked, (batch, steps, heads, size) = cell.dtype, mask is not None, i.shape
    padded = _Sizes.of(i, offsets, wide).padded
    return (
        New(i.shape, wide, masked),
        *(New(x.shape, wide) for x in (hidden, cell, normalizer, stabilizer)),
        New((heads, batch, steps, PLACES, padded), wide, masked) if keep else None,
        New((heads, batch, steps, size), wide, masked) if keep else None,
    )


def _forward(made, i, f, z, o, bias, mixing, hidden, cell, normalizer, stabilizer, mask, offsets, keep) -> Block:
    shown, *last, kept, met = made
    fixed = (bias, mixing, hidden, cell, normalizer, stabilizer)
    return (
        *_Sizes.of(i, offsets, cell.dtype),
        ELEMENTS[cell.dtype][0],
        *(pointer(x) for x in (offsets, mask)),
        *(number for x in (i, f, z, o) for number in operand(x, x.shape[2])),
        *NOTHING,
        *(pointer(x) for x in (*fixed, *last, shown, kept, met)),
        *(0,) * 9,
    )


def _settled_back(d_shown, d_hidden, d_cell, d_normalizer, d_stabilizer, mixing, cell, normalizer, mask, offsets, kept):
    fixed = (d_hidden, d_cell, d_normalizer, d_stabilizer, mixing, cell, normalizer)
    return dense(d_shown), *each_flat(*fixed, dtype=cell.dtype), *each_flat(mask, offsets), kept


def _room_back(d_shown, d_hidden, d_cell, d_normalizer, d_stabilizer, mixing, cell, normalizer, mask, offsets, kept):
    """Of what the gates were given (h, b, t, 4, d), and of the state."""
    wide, (batch, steps, heads, size) = cell.dtype, d_shown.shape
    given = New((heads, batch, steps, 4, size), wide, mask is not None)
    return given, *(New(cell.shape, wide) for _ in range(4))


def _backward(
    made, d_shown, d_hidden, d_cell, d_normalizer, d_stabilizer, mixing, cell, normalizer, mask, offsets, kept
) -> Block:
    incoming = (d_hidden, d_cell, d_normalizer, d_stabilizer)
    return (
        *_Sizes.of(d_shown, offsets, cell.dtype),
        ELEMENTS[cell.dtype][0],
        *(pointer(x) for x in (offsets, mask)),
        *NOTHING * 4,
        *operand(d_shown, d_shown.shape[2]),
        *(pointer(x) for x in (None, mixing, None, cell, normalizer, *(None,) * 6, kept, None, *incoming, *made)),
    )


def _remember(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs[:-1], *output[5:])


def _differentiate(ctx: Any, *incoming: Tensor | None) -> tuple:
    """Gradients of every tensor, in its dtype."""
    *given, mask, offsets, kept, met = ctx.saved_tensors
    i, _, _, _, _, mixing, _, cell, normalizer, _ = given
    arriving = arrived(incoming[:5], cell.dtype, i.shape, *(cell.shape,) * 4)
    if torch.is_grad_enabled():
        return (*_again(tuple(given), mask, offsets, arriving), None, None, None)
    d_given, *d_state = _BACKWARD(*arriving, mixing, cell, normalizer, mask, offsets, kept)
    # A head's steps in one row: (h, b t, 4 d) and (h, b t, d).
    by_head = d_given.flatten(3).flatten(1, 2)
    d_bias = by_head.sum(1).unflatten(1, (4, -1)).transpose(0, 1)
    d_mixing = by_head.mT @ met.flatten(1, 2)
    d_gates = (one.permute(1, 2, 0, 3) for one in d_given.unbind(3))
    made = (*d_gates, d_bias, d_mixing, *d_state)
    return (*(d.to(x.dtype) for x, d in zip(given, made, strict=True)), None, None, None)


def _again(given: tuple, mask: Tensor | None, offsets: Tensor | None, incoming: Sequence[Tensor]) -> tuple:
    """The same gradients by a loop in torch, so that they have gradients of their own."""
    given = apart(given)
    *gates, bias, mixing, hidden, cell, normalizer, stabilizer = given
    wide = cell.dtype

    def step(given: Any, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        h, c, n, m = state
        mixed = torch.einsum("bhi,hoi->bho", h, mixing.to(wide)).unflatten(2, (4, -1)).unbind(2)
        i, f, z, o = (x + own + more for x, own, more in zip(given, bias, mixed, strict=True))
        f = F.logsigmoid(f) + m
        m = torch.maximum(i, f).detach()
        write, kept = (i - m).exp(), (f - m).exp()
        c, n = c * kept + write * z.tanh(), n * kept + write
        h = o.sigmoid() * c / n
        return h, (h, c, n, m)

    def compute() -> list[Tensor]:
        shown, last = stepwise(step, [x.to(wide) for x in gates], (hidden, cell, normalizer, stabilizer), mask, offsets)
        return [shown, *last]

    return gradients_again(given, compute, incoming)


# A task brings all that it reads of a state before it writes.
_RUN = Operator("slstm", settle=_settled, room=_room, block=_forward, in_place={1: 6, 2: 7, 3: 8, 4: 9})
_FORWARD = _RUN.operator
_BACKWARD = Operator("slstm_backward", settle=_settled_back, room=_room_back, block=_backward)
differentiable("slstm", _differentiate, _remember)


def slstm(
    i: Tensor,
    f: Tensor,
    z: Tensor,
    o: Tensor,
    bias: Tensor,
    mixing: Tensor,
    hidden: Tensor,
    cell: Tensor,
    normalizer: Tensor,
    stabilizer: Tensor,
    *,
    real: Tensor | None = None,
    offsets: list[int] | None = None,
) -> tuple[Tensor, ...]:
    """What is shown (b, t, h, d), and the last hidden, cell, normalizer and stabilizer (n, h, d), float32 at least.

    The gates are given (b, t, h, d), besides a bias (4, h, d) and R h with R (h, 4 d, d): four blocks of d rows, as i,
    f, z and o.
    """
    wide = torch.float64 if i.dtype == torch.float64 else torch.float32
    state = tuple(x.to(wide) for x in (hidden, cell, normalizer, stabilizer))
    return run(_RUN, (i, f, z, o, bias, mixing, *state), real, offsets)[:5]
