"""Which backend has a kernel for which form of the recurrence."""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from lavagna.algebra.transition import Transition
from lavagna.kernels.cpu import attention
from lavagna.kernels.cpu import recurrence as cpu
from lavagna.kernels.cpu.gated_norm import gated_norm
from lavagna.kernels.cpu.response import response
from lavagna.kernels.cpu.selective import selective_scan
from lavagna.kernels.cpu.short_conv import short_conv
from lavagna.kernels.cpu.slstm import slstm
from lavagna.kernels.cpu.wkv import wkv


class Kernel(NamedTuple):
    """A kernel of the recurrence, or of a part of a layer, such as its recurrence with what stands around it.

    The recurrence's `run(a, q, k, v, state, *, read, real, offsets)` returns reads and last state of any legal call
    that `lacks` says nothing of: broadcast axes, key heads, mask and borders are its own to mind. A part's takes what
    the part is of. `lacks(a, q, k, v)` says in a line why a call can't be served, or None.
    """

    run: Callable[..., Any]
    lacks: Callable[[Transition, Tensor, Tensor, Tensor], str | None]


# By backend, which is named as its type of device is, and form.
KERNELS = {("cpu", "recurrent"): Kernel(cpu.recurrence, cpu.lacks)}
# By backend and name.
FUSED = {
    ("cpu", "attention_step"): Kernel(attention.attention_step, attention.lacks),
    ("cpu", "gated_norm"): Kernel(gated_norm, cpu.lacks),
    ("cpu", "response"): Kernel(response, cpu.lacks),
    ("cpu", "selective_scan"): Kernel(selective_scan, cpu.lacks),
    ("cpu", "short_conv"): Kernel(short_conv, cpu.lacks),
    ("cpu", "slstm"): Kernel(slstm, cpu.lacks),
    ("cpu", "wkv"): Kernel(wkv, cpu.lacks),
}


def find(backend: str, form: str) -> Kernel | None:
    """The kernel of a backend, or of a type of device, for a form; "auto" is whichever form it has."""
    return KERNELS.get((backend, "recurrent" if form == "auto" else form))


def find_fused(backend: str, name: str) -> Kernel | None:
    """The kernel of a backend, or of a type of device, for a layer's recurrence with what stands around it."""
    return FUSED.get((backend, name))


def missing(backend: str, form: str | None = None) -> str:
    """What is said to whoever asked a backend for a kernel that it hasn't: of a form, or where None of a layer."""
    own = [each for name, each in KERNELS if name == backend]
    if not own:
        lack = "no kernels yet, for any device"
    elif form is None:
        lack = "no kernel for this layer"
    else:
        lack = f"no kernel for the {form} form, but for {', '.join(own)} and auto"
    return f"the {backend} backend has {lack}. Use backend='torch', which runs everything, or 'auto'."


def describe(backend: str) -> str:
    """In a line, what kernels a backend has here, or why none."""
    return cpu.describe() if backend == "cpu" else "none yet: torch runs everything"


def serves(backend: str) -> bool:
    """Whether the kernels of a backend are there."""
    return backend == "cpu" and cpu.LIBRARY.functions is not None
