"""The recurrence on a CPU: the door's kernel, and its gradients."""

from typing import Any

import torch
from torch import Tensor

from lavagna.algebra.transition import Transition, finite
from lavagna.derivatives import apart, beyond_operators, gradients_again
from lavagna.forms.call import Inputs, call
from lavagna.forms.chunkwise import chunkwise
from lavagna.kernels.cpu import narrow
from lavagna.kernels.cpu.operands import LIBRARY, arrived, differentiable, vector_bytes
from lavagna.kernels.cpu.operators import BACKWARD, LONGEST, RUN
from lavagna.kernels.cpu.planned import run


def _remember(ctx: Any, inputs: tuple, output: tuple) -> None:
    """Tensors and choices of either operator, and what it kept. Narrow memories are erased decayed, if at all."""
    ctx.save_for_backward(*(x for x in inputs if not isinstance(x, bool)), *output[2:])
    *decayed, ctx.before, _ = (x for x in inputs if isinstance(x, bool))
    ctx.decayed = all(decayed)


def _differentiate(ctx: Any, d_output: Tensor | None, d_last: Tensor | None, *_: Any) -> tuple:
    """Gradients of every tensor, reduced to the axes it came with."""
    q, k, v, log_decay, step, erase, right, state, mask, offsets, found, kept = ctx.saved_tensors
    incoming = arrived((d_output, d_last), state.dtype, v.shape, state.shape)
    given = (q, k, v, log_decay, step, erase, right, state)
    if torch.is_grad_enabled():
        return (*_again(ctx, given, mask, offsets, *incoming), None, None, None, None, None)
    made = BACKWARD(
        *incoming, q, k, v, log_decay, step, erase, right, mask, offsets, found, kept, ctx.decayed, ctx.before
    )
    d_q, d_k, d_v, d_log_decay, d_erase, d_right, d_state = made
    d_step = None
    if log_decay is not None and step is not None:
        heads = d_log_decay.shape[2]
        # In the sums' dtype: float16 has no number as low as that which stands for minus infinity.
        rates = finite(log_decay.to(d_log_decay.dtype))
        d_step = (d_log_decay * _by_heads(rates.conj(), heads)).sum(3, keepdim=True)
        d_log_decay = d_log_decay * _by_heads(step.conj(), heads)
        if mask is not None:
            # Whatever a masked step holds, NaN too.
            d_step, d_log_decay = (x.masked_fill(~mask[:, :, None, None], 0) for x in (d_step, d_log_decay))
    grads = (d_q, d_k, d_v, d_log_decay, d_step, d_erase, d_right, d_state)
    reduced = (None if x is None or d is None else _like(x, d) for x, d in zip(given, grads, strict=True))
    return (*reduced, None, None, None, None, None)


def _by_heads(x: Tensor, heads: int) -> Tensor:
    """A part with one head a head of v, or one for all."""
    return x if x.shape[2] in (1, heads) else x.repeat_interleave(heads // x.shape[2], 2)


def _like(x: Tensor, gradient: Tensor) -> Tensor:
    """A gradient summed over the axes that were broadcast, in the dtype of what it is of."""
    if x.shape[2] != gradient.shape[2] and x.shape[2] != 1:
        gradient = gradient.unflatten(2, (x.shape[2], -1)).sum(3)
    broadcast = [axis for axis in range(3) if x.shape[axis] == 1 and gradient.shape[axis] != 1]
    if broadcast and x.ndim == 4 and gradient.ndim == 4:
        gradient = gradient.sum(broadcast, keepdim=True)
    if gradient.is_complex() and not x.is_complex():
        gradient = gradient.real
    return gradient.to(x.dtype)


def _again(ctx: Any, given: tuple, mask: Tensor | None, offsets: Tensor | None, d_output: Tensor, d_last: Tensor):
    """The same gradients by torch's chunks, so that they have gradients of their own."""
    given = q, k, v, log_decay, step, erase, right, state = apart(given)

    def fold(inputs: Inputs, start: Tensor) -> tuple[Tensor, Tensor]:
        steps = inputs.v.shape[1]
        if not steps or not inputs.v.shape[0]:
            return inputs.v * 1, start.clone()
        return chunkwise(*inputs, start, read="before" if ctx.before else "after", chunk=min(LONGEST, steps))

    def compute() -> tuple[Tensor, Tensor]:
        along = k if right is None else right
        if erase is None:
            a = Transition(log_decay=log_decay, step=step)
        elif ctx.decayed:
            a = Transition(log_decay=log_decay, step=step, right=along, beta=erase)
        else:
            a = Transition(log_decay=log_decay, step=step, left=erase, right=along)
        return call(fold, a, q, k, v, state, real=mask, offsets=None if offsets is None else offsets.tolist())

    return gradients_again(given, compute, (d_output, d_last))


def _differentiate_narrow(ctx: Any, d_output: Tensor | None, d_last: Tensor | None, _: Any) -> tuple:
    """The wanted gradients, reduced to the axes that tensors came with."""
    q, k, v, log_decay, step, beta, state, mask, offsets, kept = ctx.saved_tensors
    incoming = arrived((d_output, d_last), state.dtype, v.shape, state.shape)
    if torch.is_grad_enabled():
        found = _again(ctx, (q, k, v, log_decay, step, beta, None, state), mask, offsets, *incoming)
        return (*found[:6], found[7], None, None, None, None)
    given, wanted = (q, k, v, log_decay, step, beta, state), list(ctx.needs_input_grad[:7])
    made = narrow.BACKWARD(*incoming, q, k, v, log_decay, step, beta, mask, offsets, kept, ctx.before, wanted)
    reduced = (_like(x, d) if want else None for x, d, want in zip(given, made, wanted, strict=True))
    return (*reduced, None, None, None, None)


differentiable("recurrence", _differentiate, _remember)
differentiable("narrow_recurrence", _differentiate_narrow, _remember)


def describe() -> str:
    """In a line, which kernels there are, or why none."""
    if LIBRARY.functions is None:
        return f"{LIBRARY.level}; torch runs everything"
    vectors = f"{LIBRARY.level} vectors of {vector_bytes()} bytes"
    kernels = (
        "recurrence, narrow memories, constant diagonal systems, selective scan, WKV, sLSTM's cells, steps of "
        "attention, short convolution"
    )
    served = f"{kernels} and gated norms, by {vectors}"
    return f"{served}; {LIBRARY.passed_over}" if LIBRARY.passed_over else served


def lacks(a: Transition, q: Tensor, k: Tensor, v: Tensor) -> str | None:
    """Why the kernel can't serve a call, in a line, or None. Of others than q, operators say so."""
    if not q.is_cpu:
        return f"the cpu backend's kernels read the memory of a CPU, but q is on {q.device}"
    if LIBRARY.functions is None:
        return f"the cpu backend's kernels are {LIBRARY.level}"
    asked = beyond_operators()
    return None if asked is None else f"the cpu backend's kernels have no rule for {asked}"


def recurrence(
    a: Transition,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor,
    *,
    read: str,
    real: Tensor | None = None,
    offsets: list[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Reads and last state of a legal call of `recur`, by one pass over the steps."""
    if narrow.fits(a, k, v):
        tensors = (q, k, v, a.log_decay, a.step, a.beta, state)
        output, last, _ = run(narrow.RUN, tensors, real, offsets, read == "before")
        return output, last
    log_decay, step, erase, right = a.log_decay, a.step, a.left if a.beta is None else a.beta, a.right
    if state.is_complex():
        if log_decay is None:
            log_decay = state.new_zeros(1, 1, 1, 1)
    elif right is k:
        right = None
    tensors = (q, k, v, log_decay, step, erase, right, state)
    output, last, _, _ = run(RUN, tensors, real, offsets, a.beta is not None, read == "before")
    return output, last
