"""Tensors of a checkpoint put into a model, one rule after the other."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lavagna.checkpoints.plan import Plan
from lavagna.checkpoints.rules import Rule
from lavagna.models import Stack
from lavagna.modules.precision import Wide, wide_dtype


class _WithoutDrawing(TorchDispatchMode):
    """Leaves out the drawing of random numbers, which takes long and which a file is about to replace."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default):
            return args[0]
        return func(*args, **(kwargs or {}))


def place(model: Stack, device: torch.device) -> None:
    """Put an outline's buffers on a device and set them, and every mark of its parameters, which stay without memory.

    Most of what is reset is about to be replaced, so nothing else is given memory and nothing is drawn.
    """
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(buffer, device=device))
    with _WithoutDrawing():
        model.reset_parameters()


def tensors_of(made: Plan) -> Iterator[tuple[str, Tensor]]:
    """Our parameters one after the other, made of the tensors of a checkpoint.

    Raises ValueError where two names of one matrix hold different numbers.
    """
    for rule in made.rules:
        yield from zip(rule.ours, _read(made, rule), strict=True)


def _read(made: Plan, rule: Rule) -> list[Tensor]:
    # A function, so that what was taken is let go before the next rule takes its own.
    taken = [made.weights.take(name) for name in rule.theirs]
    if made.twins and made.twins[0] in rule.theirs:
        _compare(made, taken[0])
    return rule.read(taken)


def fill(made: Plan, device: torch.device, dtype: torch.dtype | None) -> None:
    """Put a plan's tensors into its model, in the given dtype or their own; what layers own in float32 at least.

    Raises ValueError where no dtype is given and theirs is one that torch stores but does not compute in.
    """
    for name, tensor in tensors_of(made):
        module, leaf = _part(made.model, name)
        wanted = dtype or tensor.dtype
        if wanted.is_floating_point and wanted.itemsize < 2:
            raise ValueError(
                f"load: {name} is {wanted}, which torch does not compute in. Name another dtype, such as "
                "dtype=torch.bfloat16."
            )
        if isinstance(module, Wide):
            wanted = wide_dtype(wanted)
        # What is cut out of a larger tensor would keep all of it alive.
        whole = tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
        whole = whole.to(device, wanted)
        old = getattr(module, leaf)
        if isinstance(old, nn.Parameter):
            new = nn.Parameter(whole, requires_grad=old.requires_grad)
            vars(new).update(vars(old))
            whole = new
        setattr(module, leaf, whole)


def _part(model: Stack, name: str) -> tuple[nn.Module, str]:
    """The module that a name is in, and what it is called there."""
    place, _, leaf = name.rpartition(".")
    return model.get_submodule(place), leaf


def _compare(made: Plan, tensor: Tensor) -> None:
    assert made.twins
    embedding, head = made.twins
    if not torch.equal(tensor, made.weights.take(head)):
        raise ValueError(
            f"load: '{made.weights.path}' has an {embedding} and a {head} that differ, but its config.json ties them. "
            "Untie them there (tie_embeddings or tie_word_embeddings: false) to keep both, or remove one from the file."
        )
