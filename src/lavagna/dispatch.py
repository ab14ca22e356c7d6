"""The one door: any legal call of the recurrence, checked, brought to one shape, and sent to a form on a backend."""

from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from lavagna import kernels
from lavagna.algebra.transition import Transition
from lavagna.autocast import without_autocast
from lavagna.facts import Facts, facts, plain
from lavagna.forms import FORMS
from lavagna.forms.call import Fold, Inputs, call
from lavagna.packing import as_mask, as_offsets

BACKENDS = ("torch", "cpu", "triton")
READS = ("after", "before")
CHUNK = 64
REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
# Below this many steps the loop over steps costs less than the products of a chunk.
FEW = 3
# Numbers of a head's memory up to which a chunk's triangle of scores costs more than the memories themselves: one decay
# per channel needs log2(chunk) products in place of one, so it pays later.
NARROW, NARROW_DIAGONAL = 16, 64
# Calls that fit, by what their tensors are, with the dtype of their sums, and how many are kept.
_KNOWN: dict[Facts, torch.dtype] = {}
MANY = 1024
# Numbers of a step, all rows and heads together, from which on a CPU computes longer than it calls: 32 KB.
CACHED = 8192


class Result(NamedTuple):
    """What a recurrence returns: every step's read, and the state after the last step."""

    output: Shaped[Tensor, "b t h v"]
    state: Shaped[Tensor, "n h v k"]


def recur(
    a: Transition,
    q: Shaped[Tensor, "..."],
    k: Shaped[Tensor, "..."],
    v: Shaped[Tensor, "..."],
    state: Shaped[Tensor, "..."] | None = None,
    *,
    form: str = "auto",
    backend: str = "auto",
    chunk: int | None = None,
    read: str = "after",
    mask: Shaped[Tensor, "..."] | None = None,
    cu_seqlens: Shaped[Tensor, "..."] | list[int] | None = None,
) -> Result:
    """Run the recurrence over a text and return every read and the last state.

        S_t = S_{t-1} A_t + v_t k_t^T          o_t = S_t q_t          (read="before": o_t = S_{t-1} q_t)

    Nothing else is done: no scale on `q`, no beta on the write. `q` and `k` (b, t, h, k), `v` (b, t, hv, v) with `hv` a
    multiple of `h` (value head i uses key head i // (hv / h)), `state` (b, hv, v, k) or None for zeros. The output has
    the dtype of `q`, `k`, `v`; sums and the state are float32, float64 for float64 inputs, complex where anything is.

    - form: "recurrent", "scan", "chunkwise", "parallel" or "auto"; all give the same numbers.
    - backend: "cpu" (the kernel: forms "recurrent" and "auto"), "torch" or "auto", which takes the kernel where it can.
    - chunk: steps a chunk of the chunkwise form, any int >= 1; 64 where None. Where form and backend are "auto" it
      asks for that form. No other form has chunks, nor has the kernel of backend "cpu": there it changes nothing.
    - mask (b, t), bool or 0/1: a masked step is an exact no-op and its output 0, whatever it holds.
    - cu_seqlens: sequences laid end to end in one row (b = 1), from 0 to t; the state then has one row a sequence.

    Raises ValueError on shapes, dtypes or options that don't fit. Differentiable in everything, the state included.

    >>> import torch, lavagna as lv
    >>> q, k, v = torch.randn(3, 1, 5, 2, 4, dtype=torch.float64)
    >>> one, two = (lv.recur(lv.identity(), q, k, v, form=form).output for form in ("recurrent", "parallel"))
    >>> torch.allclose(one, two)
    True
    """
    _check_options(form, backend, chunk, read)
    dtype = _checked(a, q, k, v, state)
    batch, steps = q.shape[:2]
    real = None if mask is None else as_mask("recur", mask, batch, steps)
    offsets = None if cu_seqlens is None else as_offsets("recur", cu_seqlens, batch, steps)
    with without_autocast(q):
        start = _start(state, batch if offsets is None else len(offsets) - 1, k, v, dtype)
        kernel = _kernel(form, backend, chunk, a, q, k, v)
        if kernel is None:
            fold = _fold(form, chunk, read)
            output, last = call(fold, a, q, k, v, start, real=real, offsets=offsets)
        else:
            output, last = kernel.run(a, q, k, v, start, read=read, real=real, offsets=offsets)
    wanted = dtype if dtype.is_complex else q.dtype
    return Result(output if output.dtype == wanted else output.to(wanted), last)


def check_backend(call: str, backend: str) -> None:
    """Raise ValueError on a backend that nothing is called by."""
    if backend not in ("auto", *BACKENDS):
        raise ValueError(f"{call}: backend must be one of {', '.join(BACKENDS)} or auto, but came as {backend!r}.")


def _check_options(form: str, backend: str, chunk: int | None, read: str) -> None:
    """Raise ValueError on options of `recur` that can't be."""
    if form != "auto" and form not in FORMS:
        raise ValueError(f"recur: form must be one of {', '.join(FORMS)} or auto, but came as {form!r}.")
    check_backend("recur", backend)
    if read not in READS:
        raise ValueError(f"recur: read must be 'after' or 'before', but came as {read!r}.")
    if chunk is not None and (not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1):
        raise ValueError(f"recur: chunk must be an int >= 1 or None, but came as {chunk!r}.")


def _kernel(
    form: str, backend: str, chunk: int | None, a: Transition, q: Tensor, k: Tensor, v: Tensor
) -> kernels.Kernel | None:
    """The kernel that serves a call, or None where torch does; raises ValueError where the one asked for is missing."""
    if backend == "torch" or (backend == "auto" and chunk is not None):
        return None
    found = kernels.find(q.device.type if backend == "auto" else backend, form)
    lack = None if found is None else found.lacks(a, q, k, v)
    if found is not None and lack is None:
        return found
    if backend != "auto":
        mend = "Use backend='torch' or 'auto'."
        told = kernels.missing(backend, form) if found is None else f"{lack}. {mend}"
        raise ValueError(f"recur: {told}")
    return None


def _fold(form: str, chunk: int | None, read: str) -> Fold:
    """What torch folds a full call by."""

    def fold(inputs: Inputs, start: Tensor) -> tuple[Tensor, Tensor]:
        batch, steps = inputs.v.shape[:2]
        if not steps or not batch:
            return inputs.v * 1, start.clone()
        name = form if form != "auto" else "chunkwise" if chunk is not None else _fastest(inputs)
        return FORMS[name](*inputs, start, read=read, chunk=_chunk(chunk, steps))

    return fold


def _fastest(inputs: Inputs) -> str:
    batch, steps, heads, values = inputs.v.shape
    keys, log_decay = inputs.k.shape[3], inputs.a.log_decay
    if torch.compiler.is_compiling():
        # A compiler unrolls the loop and the tree.
        return "recurrent" if steps <= FEW else "chunkwise"
    numbers = batch * heads * values * keys * (2 if inputs.v.is_complex() else 1)
    diagonal = log_decay is not None and log_decay.shape[3] > 1
    name = fastest(steps, values * keys, numbers, diagonal=diagonal, device=inputs.v.device.type)
    # Two steps with a rank-one part fold to a full matrix: the tree pays for none of them.
    return "chunkwise" if name == "scan" and inputs.a.right is not None else name


def fastest(steps: int, numbers_a_head: int, numbers: int, *, diagonal: bool, device: str = "cpu") -> str:
    """The form that `auto` takes of `steps` steps without a chunk size; chunks for rank-one parts in place of the tree.

    `numbers_a_head` is how many numbers a head remembers, `numbers` how many real ones all heads of all rows do,
    `diagonal` whether each key channel has a decay of its own.

    - Up to 3 steps, the loop over steps: generation.
    - A memory that is not narrow, as one with a rank-one part: chunks, whose work is matrix products.
    - A narrow memory (Mamba and Longhorn 1 x 16, S4D 1 x 32, S5 1 x 1), where a chunk's scores would outnumber what
      they stand for: on a CPU the loop again, if each step has enough to do (1024 channels of Mamba), else the tree.

    Measured on one thread over those shapes, t 64 to 4096: 2 to 20 times faster than chunks, forward and with the
    backward.
    """
    if steps <= FEW:
        return "recurrent"
    if numbers_a_head > (NARROW_DIAGONAL if diagonal else NARROW):
        return "chunkwise"
    return "recurrent" if numbers >= CACHED and device == "cpu" else "scan"


def _chunk(chunk: int | None, steps: int) -> int:
    """Steps a chunk: not more than there are, save under a compiler, where one graph then serves many lengths."""
    if chunk is None and torch.compiler.is_compiling():
        return CHUNK
    return min(chunk or CHUNK, steps)


def _start(state: Tensor | None, rows: int, k: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    wanted = (rows, v.shape[2], v.shape[3], k.shape[3])
    if state is None:
        return torch.zeros(wanted, dtype=dtype, device=v.device)
    if tuple(state.shape) != wanted:
        raise ValueError(
            f"recur: state must be (b, h, v, k) = {wanted}, one row a sequence and h the heads of v, but came as "
            f"{tuple(state.shape)}."
        )
    return state if state.dtype == dtype else state.to(dtype)


def _checked(a: Transition, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> torch.dtype:
    """The dtype of all sums; raises ValueError on what doesn't fit. A step takes less time than to find out anew."""
    given = (q, k, v, state, a.log_decay, a.step, a.left, a.right, a.beta) if isinstance(a, Transition) else (a,)
    key = facts(given) if plain(given) else None
    dtype = _KNOWN.get(key) if key else None
    if dtype is None:
        _check(a, q, k, v, state)
        dtype = _dtype(a, q, k, v, state)
    if key and key not in _KNOWN:
        if len(_KNOWN) >= MANY:
            _KNOWN.clear()
        _KNOWN[key] = dtype
    return dtype


def _dtype(a: Transition, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> torch.dtype:
    """The dtype of all sums: float32 or float64 as q, k, v are, complex where anything is."""
    dtypes = {x.dtype for x in (q, k, v, *a.parts.values())}
    if any(dtype.is_complex for dtype in dtypes) or (state is not None and state.is_complex()):
        return torch.complex64 if dtypes.isdisjoint((torch.float64, torch.complex128)) else torch.complex128
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _check(a: Transition, q: Tensor, k: Tensor, v: Tensor, state: Tensor | None) -> None:
    """Raise one clear ValueError on shapes, dtypes or devices that don't fit."""
    named = {"q": q, "k": k, "v": v}
    if not isinstance(a, Transition):
        raise ValueError(f"recur: the first argument must be a transition, e.g. identity(), not {type(a).__name__}.")
    every = named if state is None else named | {"state": state}
    for name, x in every.items():
        if not isinstance(x, Tensor):
            raise ValueError(f"recur: {name} must be a tensor, but came as {type(x).__name__}.")
    if not q.ndim == k.ndim == v.ndim == 4:
        raise ValueError(f"recur: q, k must be (b, t, h, k) and v (b, t, h, v), but came as {_shapes(named)}.")
    if q.shape != k.shape or q.shape[:2] != v.shape[:2] or q.shape[2] == 0 or v.shape[2] % q.shape[2]:
        raise ValueError(
            f"recur: q and k must have one shape (b, t, h, k) with at least one head, v the same b and t and a "
            f"multiple of their heads, but came as {_shapes(named)}."
        )
    dtypes = {REAL.get(x.dtype, x.dtype) for x in named.values()}
    if len(dtypes) > 1 or not dtypes.pop().is_floating_point:
        listed = ", ".join(f"{name} {x.dtype}" for name, x in named.items())
        raise ValueError(
            f"recur: q, k and v must share one floating dtype, but came as {listed}. Cast them with .to()."
        )
    parts, device = a.parts, q.device
    _check_parts(parts, named)
    for name, x in (every | parts).items():
        if x.device != device:
            raise ValueError(f"recur: q is on {device}, but {name} on {x.device}. Move them to one device.")


def _check_parts(parts: dict[str, Tensor], named: dict[str, Tensor]) -> None:
    batch, steps, key_heads, keys = named["k"].shape
    heads = (1, key_heads, named["v"].shape[2])
    lasts = {"log_decay": (1, keys), "step": (1,), "beta": (1,), "left": (keys,), "right": (keys,)}
    for name, part in parts.items():
        own_batch, own_steps, own_heads, last = part.shape
        if last not in lasts[name]:
            mend = f"Use scalar(...) with last axis 1 or diagonal(...) with {keys}. " if name == "log_decay" else ""
            raise ValueError(
                f"recur: {name} has last axis {last}, but k has {keys}. {mend}{_shapes(named | {name: part})}"
            )
        if own_batch not in (1, batch) or own_steps not in (1, steps) or own_heads not in heads:
            raise ValueError(
                f"recur: {name} must have axes b, t, h equal to those of q, k or v, or 1, but the shapes are "
                f"{_shapes(named | {name: part})}."
            )
        if not (part.dtype.is_floating_point or part.dtype.is_complex):
            raise ValueError(f"recur: {name} must be real or complex floating, but came as {part.dtype}.")


def _shapes(named: dict[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in named.items())
