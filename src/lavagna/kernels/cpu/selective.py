"""Mamba's selective scan on a CPU, fused: discretization, scan, read and skip in one pass over the steps.

`lavagna::selective_scan` returns reads and last state, then, for its backward pass, the state in front of each segment
of steps: nothing of the size (t, channels, keys) is ever in memory.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from lavagna.algebra.transition import diagonal
from lavagna.derivatives import apart, gradients_again
from lavagna.forms import call as forms
from lavagna.forms.recurrent import recurrent
from lavagna.kernels.cpu.operands import (
    ELEMENTS,
    NOTHING,
    OPERATORS,
    Block,
    arrived,
    differentiable,
    each_dense,
    each_flat,
    flat,
    operand,
    pieces,
    pointer,
    threads,
    vector_bytes,
    written,
)
from lavagna.kernels.cpu.planned import New, Operator, run

# Steps of a segment, and channels of a task, by the shape alone: no sum may depend on the number of threads.
SEGMENT, SHARE = 64, 128

OPERATORS.define(
    "selective_scan(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor state, Tensor? mask, "
    "Tensor? offsets, bool keep) -> (Tensor y, Tensor last, Tensor kept)"
)
OPERATORS.define(
    "selective_scan_backward(Tensor d_y, Tensor d_last, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, "
    "Tensor? mask, Tensor? offsets, Tensor kept) "
    "-> (Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor D, Tensor state)"
)


class _Sizes(NamedTuple):
    """What a call's block begins with."""

    rows: int
    steps: int
    channels: int
    keys: int
    segment: int
    share: int
    padded: int
    threads: int

    @classmethod
    def of(cls, x: Tensor, A: Tensor, offsets: Tensor | None, wide: torch.dtype) -> "_Sizes":
        batch, steps, channels = x.shape
        rows, keys = batch if offsets is None else len(offsets) - 1, A.shape[1]
        # The kernel's blocks of channels are two vectors.
        block = 2 * vector_bytes() // (8 if wide == torch.float64 else 4)
        padded = -(-channels // block) * block
        return cls(
            rows,
            steps,
            channels,
            keys,
            max(1, min(SEGMENT, steps)),
            SHARE,
            padded,
            threads(batch * steps * channels * keys),
        )

    @property
    def parts(self) -> int | torch.SymInt:
        """Shares of the channels."""
        return -(-self.channels // self.share)

    def kept(self, packed: bool) -> int | torch.SymInt:
        """Room for the states in front of segments, in all rows."""
        return pieces(self.steps, self.segment, self.rows, packed=packed)


def _settled(x, dt, A, B, C, D, state, mask, offsets, keep):
    A, D, state = each_flat(A, D, state, dtype=state.dtype)
    x, dt, B, C = each_dense(x, dt, B, C)
    return x, dt, A, B, C, D, state, *each_flat(mask, offsets), keep


def _room(x, dt, A, B, C, D, state, mask, offsets, keep):
    wide = state.dtype
    sizes = _Sizes.of(x, A, offsets, wide)
    kept = New((sizes.kept(offsets is not None), sizes.keys, sizes.padded), wide) if keep else None
    return New(x.shape, written(B.dtype, wide), mask is not None), New(state.shape, wide), kept


def _forward(made, x, dt, A, B, C, D, state, mask, offsets, keep) -> Block:
    y, last, kept = made
    return (
        *_Sizes.of(x, A, offsets, state.dtype),
        ELEMENTS[state.dtype][0],
        ELEMENTS[y.dtype][0],
        *(pointer(part) for part in (offsets, mask)),
        *(number for part in (x, dt, B, C) for number in operand(part)),
        *NOTHING,
        *(pointer(part) for part in (A, D, state, last, y, kept)),
        *(0,) * 8,
    )


def _settled_back(d_y, d_last, x, dt, A, B, C, D, mask, offsets, kept):
    A, D = each_flat(A, D, dtype=d_last.dtype)
    d_y, x, dt, B, C = each_dense(d_y, x, dt, B, C)
    return d_y, flat(d_last), x, dt, A, B, C, D, *each_flat(mask, offsets), kept


def _room_back(d_y, d_last, x, dt, A, B, C, D, mask, offsets, kept):
    """Of B and C for each share of the channels, of A and D for each row."""
    wide, masked = d_last.dtype, mask is not None
    sizes = _Sizes.of(x, A, offsets, wide)
    return (
        *(New(x.shape, wide, masked) for _ in range(2)),
        New((sizes.rows, *A.shape), wide),
        *(New((sizes.parts, *B.shape), wide, masked) for _ in range(2)),
        New((sizes.rows, 0 if D is None else sizes.channels), wide),
        New(d_last.shape, wide),
    )


def _backward(made, d_y, d_last, x, dt, A, B, C, D, mask, offsets, kept) -> Block:
    d_x, d_dt, d_A, d_B, d_C, d_D, d_state = made
    return (
        *_Sizes.of(x, A, offsets, d_last.dtype),
        ELEMENTS[d_last.dtype][0],
        0,
        *(pointer(part) for part in (offsets, mask)),
        *(number for part in (x, dt, B, C, d_y) for number in operand(part)),
        *(pointer(part) for part in (A, D, None, None, None, kept, d_last, d_x, d_dt, d_B, d_C, d_A, d_D, d_state)),
    )


def _summed(d_x, d_dt, d_A, d_B, d_C, d_D, d_state):
    return d_x, d_dt, d_A.sum(0), d_B.sum(0), d_C.sum(0), d_D.sum(0), d_state


def _remember(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs[:-1], output[2])


def _differentiate(ctx: Any, d_y: Tensor | None, d_last: Tensor | None, *_: Any) -> tuple:
    """Gradients of every tensor, in its dtype."""
    x, dt, A, B, C, D, state, mask, offsets, kept = ctx.saved_tensors
    incoming = arrived((d_y, d_last), state.dtype, x.shape, state.shape)
    given = (x, dt, A, B, C, D, state)
    if torch.is_grad_enabled():
        return (*_again(given, mask, offsets, *incoming), None, None, None)
    made = _BACKWARD(*incoming, x, dt, A, B, C, D, mask, offsets, kept)
    grads = (None if part is None else d.to(part.dtype) for part, d in zip(given, made, strict=True))
    return (*grads, None, None, None)


def _again(given: tuple, mask: Tensor | None, offsets: Tensor | None, d_y: Tensor, d_last: Tensor) -> tuple:
    """The same gradients by torch's loop, so that they have gradients of their own."""
    given = x, dt, A, B, C, D, state = apart(given)

    def compute() -> tuple[Tensor, Tensor]:
        wide = state.dtype
        v = (dt.to(wide) * x).unsqueeze(-1)
        q, k = (part.to(wide).unsqueeze(2) for part in (C, B))
        a = diagonal(A[None, None], step=dt.unsqueeze(-1))
        borders = None if offsets is None else offsets.tolist()
        y, last = forms.call(_fold, a, q, k, v, state, real=mask, offsets=borders)
        y = y.squeeze(-1)
        if D is not None:
            skipped = D * x
            y = y + (skipped if mask is None else skipped.masked_fill(~mask.unsqueeze(-1), 0))
        return y, last

    return gradients_again(given, compute, (d_y, d_last))


def _fold(inputs: forms.Inputs, start: Tensor) -> tuple[Tensor, Tensor]:
    if not inputs.v.shape[1] or not inputs.v.shape[0]:
        return inputs.v * 1, start.clone()
    return recurrent(*inputs, start, read="after", chunk=1)


_RUN = Operator("selective_scan", settle=_settled, room=_room, block=_forward, in_place={1: 6})
_FORWARD = _RUN.operator
_BACKWARD = Operator("selective_scan_backward", settle=_settled_back, room=_room_back, block=_backward, results=_summed)
differentiable("selective_scan", _differentiate, _remember)


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    state: Tensor,
    *,
    real: Tensor | None = None,
    offsets: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Reads (b, t, c), in the dtype of B, and the last state (n, c, 1, k), of a legal call: A <= 0, dt >= 0."""
    state = state.to(torch.float64 if B.dtype == torch.float64 else torch.float32)
    y, last, _ = run(_RUN, (x, dt, A, B, C, D, state), real, offsets)
    return y.to(B.dtype), last
