"""The compiled recurrence as operators of torch, with the shapes that tracing needs.

`lavagna::recurrence` takes the parts of a transition as they come, broadcast axes and all, and returns what `recur`
does, then what its backward pass needs: what each step wrote or found, and the state in front of each segment of steps.
`erase` is beta where `decayed`, else left; without `right` the key itself is erased along.
"""

import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.prepared import Call, prepares

# Loaded once, when the module is: a compiler that traces a call finds a constant.
LIBRARY = library()
# A kind of number to the kernel: which, and whether complex.
ELEMENTS = {
    torch.float32: (0, 0),
    torch.float64: (1, 0),
    torch.bfloat16: (2, 0),
    torch.complex64: (0, 1),
    torch.complex128: (1, 1),
}
# Steps of a segment at most, and numbers of its rows of keys: what stays in the second cache with a segment's states.
LONGEST, NUMBERS = 64, 8192
# Numbers of a memory, times steps, from which on a second thread costs less than it saves.
WORTH = 1 << 17
# The backward pass divides a head's values where heads are few. By the shape alone: no sum may depend on the threads.
PARTS, LEAST = 8, 32
# What stands in a block for a tensor that is not there.
NOTHING = (0, 0, 0, 0, 1, 0, 0)

OPERATORS = torch.library.Library("lavagna", "FRAGMENT")
OPERATORS.define(
    "recurrence(Tensor q, Tensor k, Tensor v, Tensor? log_decay, Tensor? step, Tensor? erase, Tensor? right, "
    "Tensor state, Tensor? mask, Tensor? offsets, bool decayed, bool before, bool keep) "
    "-> (Tensor output, Tensor last, Tensor found, Tensor kept)"
)
OPERATORS.define(
    "recurrence_backward(Tensor d_output, Tensor d_last, Tensor q, Tensor k, Tensor v, Tensor? log_decay, "
    "Tensor? step, Tensor? erase, Tensor? right, Tensor? mask, Tensor? offsets, Tensor found, Tensor kept, "
    "bool decayed, bool before) "
    "-> (Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor erase, Tensor right, Tensor state)"
)


class Sizes(NamedTuple):
    """What a call's block begins with."""

    rows: int
    steps: int
    heads: int
    keys: int
    values: int
    decays: int
    segment: int
    parts: int
    threads: int

    @classmethod
    def of(cls, k: Tensor, v: Tensor, log_decay: Tensor | None, offsets: Tensor | None) -> "Sizes":
        """The sizes of a call, each head whole."""
        batch, steps, heads, values = v.shape
        rows, keys = batch if offsets is None else len(offsets) - 1, k.shape[3]
        segment = max(1, min(LONGEST, max(8, NUMBERS // max(keys, 1)), steps))
        threads = torch.get_num_threads() if batch * steps * heads * values * keys >= WORTH else 1
        decays = 0 if log_decay is None else log_decay.shape[3]
        return cls(rows, steps, heads, keys, values, decays, segment, 1, threads)

    def divided(self, tasks: int) -> "Sizes":
        """The same with each head's values in parts, so that there are about as many tasks as wanted."""
        wanted = min(-(-tasks // max(self.rows * self.heads, 1)), self.values // LEAST)
        share = -(-self.values // max(wanted, 1))
        return self._replace(parts=-(-self.values // max(share, 1)) or 1)

    def kept(self, wide: torch.dtype, packed: bool) -> tuple[int | torch.SymInt, ...]:
        """The shape of the states in front of segments, their rows of keys in whole vectors."""
        lanes = vector_bytes() // (8 if wide in (torch.float64, torch.complex128) else 4)
        count = self.steps // self.segment + self.rows if packed else -(-self.steps // self.segment) * self.rows
        return count, self.heads, self.values, -(-self.keys // lanes) * lanes


def vector_bytes() -> int:
    """Bytes of a vector of the loaded kernels."""
    return {"plain": 16, "avx2": 32, "avx512": 64}[LIBRARY.level]


def _dense(x: Tensor) -> Tensor:
    """A tensor as the kernel reads it: the last axis side by side, a dtype it knows, no sign or conjugate pending."""
    if x.dtype not in ELEMENTS:
        x = x.to(torch.complex64 if x.is_complex() else torch.float32)
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def _operand(x: Tensor, heads: int) -> tuple[int, ...]:
    b, t, h, _ = x.shape
    by_row, by_step, by_head, _ = x.stride()
    strides = by_row if b > 1 else 0, by_step if t > 1 else 0, by_head if h > 1 else 0
    return (x.data_ptr(), *strides, heads // h if h > 1 else 1, *ELEMENTS[x.dtype])


def _block(
    sizes: Sizes,
    wide: torch.dtype,
    operands: tuple[Tensor | None, ...],
    mask: Tensor | None,
    offsets: Tensor | None,
    decayed: bool,
    before: bool,
    rest: tuple[int, ...],
) -> bytes:
    """A call as the kernel reads it; `operands` dense, v the third."""
    v = operands[2]
    assert v is not None
    element, is_complex = ELEMENTS[wide]
    # Real reads are rounded to what v is as they are written.
    if v.dtype == torch.bfloat16 and not is_complex:
        element = ELEMENTS[v.dtype][0]
    pointers = (0 if x is None else x.data_ptr() for x in (offsets, mask))
    block = [*sizes, element, is_complex, int(before), int(decayed), *pointers]
    for x in operands:
        block += NOTHING if x is None else _operand(x, sizes.heads)
    block += rest
    return struct.pack(f"{len(block)}q", *block)


def _some(x: Tensor) -> int:
    return x.data_ptr() if x.numel() else 0


def _recurrence(q, k, v, log_decay, step, erase, right, state, mask, offsets, decayed, before, keep):
    assert LIBRARY.functions is not None
    operands = tuple(None if x is None else _dense(x) for x in (q, k, v, log_decay, step, erase, right))
    state, mask = state.contiguous(), None if mask is None else mask.contiguous()
    made = _room(k, v, log_decay, erase, state, mask, offsets, keep)
    LIBRARY.functions.lavagna_recurrence(_forward_block(operands, state, mask, offsets, decayed, before, made))
    return made


def _forward_block(operands, state, mask, offsets, decayed, before, made) -> bytes:
    output, last, found, kept = made
    _, k, v, log_decay, *_ = operands
    sizes = Sizes.of(k, v, log_decay, offsets)
    if sizes.threads > 1:
        sizes = sizes.divided(2 * sizes.threads)
    rest = (state.data_ptr(), last.data_ptr(), output.data_ptr(), _some(found), _some(kept), *NOTHING, *(0,) * 8)
    return _block(sizes, state.dtype, operands, mask, offsets, decayed, before, rest)


def _room(k, v, log_decay, erase, state, mask, offsets, keep):
    """Room for what the operator returns; zeros where a masked step writes nothing."""
    sizes, wide = Sizes.of(k, v, log_decay, offsets), state.dtype
    kind = v.dtype if v.dtype == torch.bfloat16 and not wide.is_complex else wide
    output = (torch.empty if mask is None else torch.zeros)(v.shape, dtype=kind)
    found = torch.empty(v.shape if keep and erase is not None else (0,), dtype=wide)
    kept = torch.empty(sizes.kept(wide, offsets is not None) if keep else (0,), dtype=wide)
    return output, torch.empty(state.shape, dtype=wide), found, kept


def _backward(d_output, d_last, q, k, v, log_decay, step, erase, right, mask, offsets, found, kept, decayed, before):
    assert LIBRARY.functions is not None
    operands = tuple(None if x is None else _dense(x) for x in (q, k, v, log_decay, step, erase, right))
    d_output, d_last = _dense(d_output), d_last.contiguous()
    mask = None if mask is None else mask.contiguous()
    made = _room_back(k, v, log_decay, erase, right, mask, offsets, d_last, decayed)
    sizes = Sizes.of(k, v, log_decay, offsets).divided(PARTS)
    rest = (0, 0, 0, _some(found), kept.data_ptr(), *_operand(d_output, sizes.heads), d_last.data_ptr())
    rest += tuple(x.data_ptr() for x in made)
    block = _block(sizes, d_last.dtype, operands, mask, offsets, decayed, before, rest)
    LIBRARY.functions.lavagna_recurrence_backward(block)
    # Those of keys came once for each part of the values.
    return tuple(x if x.ndim < 5 else x[0] if x.shape[0] == 1 else x.sum(0) for x in made)


def _room_back(k, v, log_decay, erase, right, mask, offsets, d_last, decayed):
    sizes, wide = Sizes.of(k, v, log_decay, offsets).divided(PARTS), d_last.dtype
    room = torch.empty if mask is None else torch.zeros
    parts, nothing = (sizes.parts, *v.shape[:3]), torch.empty(0, dtype=wide)
    return (
        room((*parts, sizes.keys), dtype=wide),
        room((*parts, sizes.keys), dtype=wide),
        room(v.shape, dtype=wide),
        nothing if log_decay is None else room((*parts, sizes.decays), dtype=wide),
        nothing if erase is None else room((*parts, 1 if decayed else sizes.keys), dtype=wide),
        nothing if right is None else room((*parts, sizes.keys), dtype=wide),
        torch.empty(d_last.shape, dtype=wide),
    )


def _shapes(q, k, v, log_decay, step, erase, right, state, mask, offsets, decayed, before, keep):
    return _room(k, v, log_decay, erase, state, mask, offsets, keep)


def _shapes_back(d_output, d_last, q, k, v, log_decay, step, erase, right, mask, offsets, found, kept, decayed, before):
    made = _room_back(k, v, log_decay, erase, right, mask, offsets, d_last, decayed)
    return tuple(x[0] if x.ndim == 5 else x for x in made)


OPERATORS.impl("recurrence", _recurrence, "CPU")
OPERATORS.impl("recurrence_backward", _backward, "CPU")
torch.library.register_fake("lavagna::recurrence", _shapes, lib=OPERATORS)
torch.library.register_fake("lavagna::recurrence_backward", _shapes_back, lib=OPERATORS)
FORWARD = torch.ops.lavagna.recurrence.default
BACKWARD = torch.ops.lavagna.recurrence_backward.default


@prepares(FORWARD)
def _prepared(made: tuple[Tensor, ...], *arguments: Any) -> Call | None:
    *operands, state, mask, offsets, decayed, before, keep = arguments
    dense = state.is_contiguous() and all(x is None or _dense(x) is x for x in operands)
    if mask is not None or offsets is not None or keep or not dense:
        return None
    block = _forward_block(tuple(operands), state, mask, offsets, decayed, before, made)
    return Call("lavagna_recurrence", block)
