"""WKV, the average of RWKV-4, on a CPU, fused: weights, sums and quotients in one pass over the steps.

`lavagna::wkv` returns averages, the last sums and the unit that they are over, then, for its backward pass, those in
front of each segment of steps. What drops out of every average, a unit of measure, has no gradient: only the unit that
was given has the gradient of the sums given, and that which is returned hands its own on where no step lies between.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
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
    each_flat,
    operand,
    pieces,
    pointer,
    threads,
    vector_bytes,
)
from lavagna.kernels.cpu.planned import New, Operator, run
from lavagna.kernels.cpu.stepwise import stepwise

# Steps of a segment, and channels of a task, by the shape alone: no sum may depend on the number of threads.
SEGMENT, SHARE = 32, 64
# What a channel's step costs, in numbers of a memory that only fades and is written to: four exponentials, a quotient.
COST = 16
# The unit of sums to which nothing was ever added, there being no least one: e to its negative is never taken.
LEAST = -1e30

OPERATORS.define(
    "wkv(Tensor log_decay, Tensor u, Tensor k, Tensor v, Tensor memory, Tensor stabilizer, Tensor? mask, "
    "Tensor? offsets, bool keep) -> (Tensor y, Tensor memory, Tensor stabilizer, Tensor kept)"
)
OPERATORS.define(
    "wkv_backward(Tensor d_y, Tensor d_memory, Tensor d_stabilizer, Tensor log_decay, Tensor u, Tensor k, Tensor v, "
    "Tensor memory, Tensor? mask, Tensor? offsets, Tensor kept) "
    "-> (Tensor log_decay, Tensor u, Tensor k, Tensor v, Tensor memory, Tensor stabilizer)"
)


class _Sizes(NamedTuple):
    """What a call's block begins with."""

    rows: int
    steps: int
    channels: int
    segment: int
    share: int
    padded: int
    threads: int

    @classmethod
    def of(cls, k: Tensor, offsets: Tensor | None, wide: torch.dtype) -> "_Sizes":
        batch, steps, channels = k.shape
        rows, lanes = batch if offsets is None else len(offsets) - 1, vector_bytes() // wide.itemsize
        padded, count = -(-channels // lanes) * lanes, threads(batch * steps * channels * COST)
        return cls(rows, steps, channels, max(1, min(SEGMENT, steps)), SHARE, padded, count)

    def kept(self, packed: bool) -> int | torch.SymInt:
        """Room for the sums in front of segments, in all rows."""
        return pieces(self.steps, self.segment, self.rows, packed=packed)


def _settled(log_decay, u, k, v, memory, stabilizer, mask, offsets, keep):
    log_decay, u, memory, stabilizer = each_flat(log_decay, u, memory, stabilizer, dtype=memory.dtype)
    return log_decay, u, dense(k), dense(v), memory, stabilizer, *each_flat(mask, offsets), keep


def _room(log_decay, u, k, v, memory, stabilizer, mask, offsets, keep):
    wide = memory.dtype
    sizes = _Sizes.of(k, offsets, wide)
    return (
        New(k.shape, wide, mask is not None),
        New(memory.shape, wide),
        New(stabilizer.shape, wide),
        New((sizes.kept(offsets is not None), 3, sizes.padded), wide) if keep else None,
    )


def _forward(made, log_decay, u, k, v, memory, stabilizer, mask, offsets, keep) -> Block:
    y, last, last_stabilizer, kept = made
    return (
        *_Sizes.of(k, offsets, memory.dtype),
        ELEMENTS[memory.dtype][0],
        *(pointer(part) for part in (offsets, mask)),
        *operand(k),
        *operand(v),
        *NOTHING,
        *(pointer(part) for part in (log_decay, u, memory, stabilizer, last, last_stabilizer, y, kept)),
        *(0,) * 8,
    )


def _settled_back(d_y, d_memory, d_stabilizer, log_decay, u, k, v, memory, mask, offsets, kept):
    given = (d_memory, d_stabilizer, log_decay, u, memory)
    d_memory, d_stabilizer, log_decay, u, memory = each_flat(*given, dtype=memory.dtype)
    d_y, k, v = dense(d_y), dense(k), dense(v)
    return d_y, d_memory, d_stabilizer, log_decay, u, k, v, memory, *each_flat(mask, offsets), kept


def _room_back(d_y, d_memory, d_stabilizer, log_decay, u, k, v, memory, mask, offsets, kept):
    """Of the decay and of u for each row."""
    wide, rows = memory.dtype, memory.shape[0]
    return (
        *(New((rows, k.shape[2]), wide) for _ in range(2)),
        *(New(k.shape, wide, mask is not None) for _ in range(2)),
        New(memory.shape, wide),
        New(d_stabilizer.shape, wide),
    )


def _backward(made, d_y, d_memory, d_stabilizer, log_decay, u, k, v, memory, mask, offsets, kept) -> Block:
    d_log_decay, d_u, d_k, d_v, to_memory, to_stabilizer = made
    return (
        *_Sizes.of(k, offsets, memory.dtype),
        ELEMENTS[memory.dtype][0],
        *(pointer(part) for part in (offsets, mask)),
        *operand(k),
        *operand(v),
        *operand(d_y),
        *(pointer(part) for part in (log_decay, u, memory, None, None, None, None, kept, d_memory, d_stabilizer)),
        *(pointer(part) for part in (d_k, d_v, d_log_decay, d_u, to_memory, to_stabilizer)),
    )


def _summed(d_log_decay, d_u, *rest):
    return d_log_decay.sum(0), d_u.sum(0), *rest


def _remember(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(*inputs[:-1], output[3])


def _differentiate(ctx: Any, *incoming: Tensor | None) -> tuple:
    """Gradients of every tensor, in its dtype."""
    log_decay, u, k, v, memory, stabilizer, mask, offsets, kept = ctx.saved_tensors
    given = (log_decay, u, k, v, memory, stabilizer)
    arriving = arrived(incoming[:3], memory.dtype, k.shape, memory.shape, stabilizer.shape)
    if torch.is_grad_enabled():
        return (*_again(given, mask, offsets, arriving), None, None, None)
    made = _BACKWARD(*arriving, log_decay, u, k, v, memory, mask, offsets, kept)
    return (*(d.to(x.dtype) for x, d in zip(given, made, strict=True)), None, None, None)


def _again(given: tuple, mask: Tensor | None, offsets: Tensor | None, incoming: Sequence[Tensor]) -> tuple:
    """The same gradients by a loop in torch, so that they have gradients of their own."""
    given = log_decay, u, k, v, memory, stabilizer = apart(given)
    k, v = (x.to(memory.dtype) for x in (k, v))

    def step(now: Any, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        (k, v), (sums, unit) = now, state
        ahead = u + k
        largest = torch.maximum(unit, ahead).detach()
        past, now = (unit - largest).exp(), (ahead - largest).exp()
        y = (past * sums[..., 0] + now * v) / (past * sums[..., 1] + now)
        after = torch.maximum(unit + log_decay, k).clamp_min(LEAST).detach()
        written = (k - after).exp().unsqueeze(-1) * torch.stack([v, torch.ones_like(v)], -1)
        return y, (((unit - after) + log_decay).exp().unsqueeze(-1) * sums + written, after)

    def compute() -> list[Tensor]:
        y, (sums, unit) = stepwise(step, (k, v), (memory.squeeze(-1), stabilizer.squeeze(-1)), mask, offsets)
        return [y, sums.unsqueeze(-1), unit.unsqueeze(-1)]

    return gradients_again(given, compute, incoming)


# A task brings all that it reads of a state before it writes.
_RUN = Operator("wkv", settle=_settled, room=_room, block=_forward, in_place={1: 4, 2: 5})
_FORWARD = _RUN.operator
_BACKWARD = Operator("wkv_backward", settle=_settled_back, room=_room_back, block=_backward, results=_summed)
differentiable("wkv", _differentiate, _remember)


def wkv(
    log_decay: Tensor,
    u: Tensor,
    k: Tensor,
    v: Tensor,
    memory: Tensor,
    stabilizer: Tensor,
    *,
    real: Tensor | None = None,
    offsets: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Averages (b, t, c), the last sums (n, c, 2, 1) and the unit that they are over (n, c, 1), float32 at least."""
    wide = torch.float64 if k.dtype == torch.float64 else torch.float32
    memory, stabilizer = memory.to(wide), stabilizer.to(wide)
    return run(_RUN, (log_decay, u, k, v, memory, stabilizer), real, offsets)[:3]
