"""A step of softmax attention on a CPU over a cache of keys and values, as generation takes it.

`lavagna::attention_step` returns what the queries (b, 1, hq, k) read, and the cache after the step as the layer keeps
it: each row's entries without holes, zeros behind. A captured step has a cache with room instead, to which it adds
where it lies: the entry of token t at t modulo the room.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lavagna.algebra.transition import Transition
from lavagna.derivatives import apart, gradients_again
from lavagna.kernels.cpu import recurrence
from lavagna.kernels.cpu.operands import (
    ELEMENTS,
    OPERATORS,
    Block,
    arrived,
    call,
    dense,
    differentiable,
    direct,
    flat,
    operand,
    packed,
    pointer,
    register,
    wide_of,
)
from lavagna.kernels.cpu.prepared import Call, prepares

KINDS = (torch.float32, torch.float64, torch.bfloat16)

OPERATORS.define(
    "attention_step(Tensor q, Tensor k, Tensor v, Tensor keys, Tensor values, Tensor tokens_seen, int? window) "
    "-> (Tensor reads, Tensor keys, Tensor values)"
)


def _block(q, k, v, keys, values, seen, window, reads) -> Block:
    """A call as the kernel reads it: q, k and v dense, the others without gaps."""
    rows, room, heads, size = keys.shape
    return (
        *(rows, heads, q.shape[2] // max(heads, 1), size, room, window or 0),
        *(torch.get_num_threads(), ELEMENTS[keys.dtype][0]),
        *(number for x in (q, k, v) for number in operand(x, x.shape[2])),
        *(pointer(x) for x in (seen, keys, values, reads)),
    )


def _step(q, k, v, keys, values, tokens_seen, window):
    _check(q, k, v, keys, values, tokens_seen, window)
    seen = _cached(tokens_seen, window)
    _check_lengths(seen, tokens_seen, keys.shape[1])
    keys, values = flat(_widened(keys)), flat(_widened(values))
    reads = q.new_empty(q.shape)
    if reads.numel():
        # What is cached is within the window.
        call("attention_step", _block(dense(q), dense(k), dense(v), keys, values, flat(seen), None, reads))
    return reads, _kept(keys, seen, window), _kept(values, seen, window)


def _cached(tokens_seen: Tensor, window: int | None) -> Tensor:
    """How many entries of each row's cache are real."""
    return tokens_seen if window is None else tokens_seen.clamp(max=window - 1)


def _widened(x: Tensor) -> Tensor:
    """A copy with room for one entry more."""
    return F.pad(x, (0, 0, 0, 0, 0, 1))


def _kept(x: Tensor, seen: Tensor, window: int | None) -> Tensor:
    """Of a cache with the new entries, as long as its longest row, what the next step may see."""
    total = seen + 1
    if window is not None and x.shape[1] >= window:
        x = torch.where((total >= window)[:, None, None, None], x[:, 1:], x[:, :-1])
    return x[:, : int(_cached(total, window).max()) if len(total) else 0].contiguous()


def _check(q, k, v, keys, values, tokens_seen, window) -> None:
    b, _, h, size = keys.shape if keys.ndim == 4 else (0, 0, 0, 0)
    groups = q.ndim == 4 and h > 0 and q.shape[2] % h == 0
    shapes = groups and q.shape == (b, 1, q.shape[2], size) and k.shape == v.shape == (b, 1, h, size)
    dtypes = {x.dtype for x in (q, k, v, keys, values)}
    fit = shapes and values.shape == keys.shape and tokens_seen.shape == (b,) and tokens_seen.dtype == torch.int64
    if not fit or len(dtypes) > 1 or not dtypes.issubset(KINDS):
        named = {"q": q, "k": k, "v": v, "keys": keys, "values": values, "tokens_seen": tokens_seen}
        came = ", ".join(f"{name} {x.dtype} {tuple(x.shape)}" for name, x in named.items())
        raise ValueError(
            "attention_step: q must be (b, 1, hq, k), k and v (b, 1, h, k) with h a divisor of hq, keys and values "
            f"(b, s, h, k), all in one of {', '.join(map(str, KINDS))}, tokens_seen int64 (b,), but came as {came}."
        )
    if window is not None and window < 1:
        raise ValueError(f"attention_step: window must be 1 or more, or None, but came as {window}.")


def _check_lengths(seen: Tensor, tokens_seen: Tensor, room: int) -> None:
    if len(seen) and not 0 <= int(seen.min()) <= int(seen.max()) <= room:
        raise ValueError(
            f"attention_step: keys and values hold {room} entries a row, but tokens_seen came as "
            f"{tokens_seen.tolist()}. Pass the state that this layer returned."
        )


def _lengths(q, k, v, keys, values, tokens_seen, window):
    _check(q, k, v, keys, values, tokens_seen, window)
    # As many entries as the longest row has, which only numbers tell.
    length = torch.library.get_ctx().new_dynamic_size()
    after = (keys.shape[0], length, *keys.shape[2:])
    return q.new_empty(q.shape), keys.new_empty(after), values.new_empty(after)


def attended(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tokens_seen: Tensor, window: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What the operator returns, by torch, with the reads in float32 at least."""
    seen, wide = _cached(tokens_seen, window), wide_of(q)
    place = torch.arange(keys.shape[1] + 1, device=seen.device)
    own = (place == seen[:, None])[:, :, None, None]
    keys, values = (torch.where(own, new, _widened(old)) for new, old in ((k, keys), (v, values)))
    grouped = q.to(wide).unflatten(2, (keys.shape[2], -1))
    scores = torch.einsum("bthgk,bmhk->bthgm", grouped, keys.to(wide)) * q.shape[3] ** -0.5
    weights = scores.masked_fill((place > seen[:, None])[:, None, None, None], -torch.inf).softmax(-1)
    reads = torch.einsum("bthgm,bmhk->bthgk", weights, values.to(wide)).flatten(2, 3)
    return reads, _kept(keys, seen, window), _kept(values, seen, window)


def _remember(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, ctx.window = inputs
    ctx.save_for_backward(*tensors)
    ctx.shapes = [x.shape for x in output]


def _differentiate(ctx: Any, *incoming: Tensor | None) -> tuple:
    """A step is short: its gradients are torch's."""
    *given, tokens_seen = ctx.saved_tensors
    arriving = arrived(incoming, wide_of(given[0]), *ctx.shapes)
    with torch.enable_grad():
        given = q, k, v, keys, values = apart(given)
    found = gradients_again(given, lambda: attended(q, k, v, keys, values, tokens_seen, ctx.window), arriving)
    if not torch.is_grad_enabled():
        found = tuple(None if d is None else d.detach() for d in found)
    return (*found, None, None)


STEP = register("attention_step", _step, _lengths)
_RUN = direct(STEP, _step)
differentiable("attention_step", _differentiate, _remember)


@prepares(STEP, in_place={1: 3, 2: 4})
def _prepared(made: tuple[Tensor, ...], *arguments: Any) -> Call:
    """A call that adds to keys and values where they lie, laid out by the number of the token."""
    q, k, v, keys, values, tokens_seen, window = arguments
    reads, *after = made
    assert after[0] is keys and after[1] is values and all(dense(x) is x for x in (q, k, v))
    return Call("lavagna_attention_step", packed(_block(q, k, v, keys, values, tokens_seen, window, reads)))


def lacks(a: Transition, q: Tensor, keys: Tensor, values: Tensor) -> str | None:
    """Why the kernel can't serve a step, in a line, or None."""
    if not q.dtype == keys.dtype == values.dtype or q.dtype not in KINDS:
        return f"the cpu backend has no kernel of attention for {q.dtype} beside {keys.dtype}"
    if torch.compiler.is_compiling():
        return "the length of a cache is not told to a compiler"
    return recurrence.lacks(a, q, keys, values)


def attention_step(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, tokens_seen: Tensor, *, window: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What each row's new queries (b, 1, hq, k) read, its own key and value counted, and keys and values after it."""
    # Here, so that a recording sees what the kernel reads.
    return _RUN(dense(q), dense(k), dense(v), keys, values, tokens_seen, window)
