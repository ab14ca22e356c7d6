"""What torch may be computing besides values and their gradients back, and gradients of gradients."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from lavagna.facts import PLAIN

FORWARD = "forward-mode derivatives"
VALUES = PLAIN | {bool, int, float}


def beyond_backward() -> str | None:
    """The name of what is being computed that operators with a backward pass alone have no rule for, or None."""
    if torch._C._functorch.peek_interpreter_stack() is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return "torch.func"
    return FORWARD if forward_mode() else None


def beyond_operators() -> str | None:
    """The same, but that a compiler, which sees the operators, tells of derivatives forward alone."""
    if torch.compiler.is_compiling():
        return FORWARD if forward_mode() else None
    return beyond_backward()


def forward_mode() -> bool:
    """Whether derivatives are carried forward, by `torch.func` too."""
    return torch.autograd.forward_ad._current_level >= 0


def only_values(given: Sequence[Any]) -> bool:
    """Whether nothing is wanted of an operator on these but numbers: no gradient, no trace, and nobody looks on."""
    if torch.compiler.is_compiling() or not VALUES.issuperset(map(type, given)):
        return False
    if torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in given):
        return False
    if torch._C._current_graph_task_id() != -1 and any(isinstance(x, Tensor) and _batched(x) for x in given):
        return False
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._is_torch_function_mode_enabled()
        or torch._C._get_tracing_state()
        or torch.autograd._profiler_enabled()
        or beyond_backward()
    )


def _batched(x: Tensor) -> bool:
    """Whether a gradient stands for many, as with `is_grads_batched` or a vectorized Jacobian."""
    return torch._C._functorch.is_legacy_batchedtensor(x)  # pyright: ignore[reportAttributeAccessIssue]


def apart(given: Iterable[Tensor | None]) -> tuple[Any, ...]:
    """The same tensors as new nodes of the graph: one may be made of another, or be given twice."""
    return tuple(None if x is None else x.view_as(x) for x in given)


def gradients_again(
    given: Iterable[Tensor | None], compute: Callable[[], Sequence[Tensor]], incoming: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    """Gradients of what was given, by torch's own derivative of `compute`, so that they have gradients of their own.

    `compute` returns the outputs to which the `incoming` gradients belong, in any dtype; those that depend on nothing
    given are passed over, and what nothing depends on has a gradient of zeros.
    """
    given = tuple(given)
    named = [x for x in given if x is not None and x.requires_grad]
    with torch.enable_grad():
        pairs = [(x.to(d.dtype), d) for x, d in zip(compute(), incoming, strict=True) if x.requires_grad]
        if not pairs:
            return tuple(torch.zeros_like(x) if x is not None and x.requires_grad else None for x in given)
        outputs, incoming = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, named, incoming, create_graph=True, materialize_grads=True)
    by_id = {id(x): gradient for x, gradient in zip(named, found, strict=True)}
    return tuple(by_id.get(id(x)) for x in given)
