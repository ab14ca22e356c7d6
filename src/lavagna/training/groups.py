"""Which parameters weight decay may shrink."""

from collections.abc import Iterator
from typing import Any

from torch import nn

from lavagna.modules.precision import Wide


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Split the trainable parameters in two groups, decayed and not, ready for `torch.optim.AdamW`.

    A group is `{"params": [...], "names": [...], "weight_decay": ...}`, its names in the order of its parameters.

    Not decayed: whatever carries `no_weight_decay = True` (decays, step sizes, bonus and base vectors: their layers say
    so), vectors and scalars, biases, the parameters of norms, and embeddings, the tied head with them. What is left are
    matrices and convolution kernels. Each parameter is in exactly one group, once, under its first name; a tied one is
    spared decay if any of its places asks for that. Frozen parameters are in none.

    Raises `ValueError` for a negative weight decay.

    >>> decayed, spared = parameter_groups(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)), 0.1)
    >>> decayed["names"], spared["names"]
    (['1.weight'], ['0.weight', '1.bias'])
    """
    if not weight_decay >= 0:
        raise ValueError(f"parameter_groups: weight_decay came as {weight_decay}, but 0 or more was wanted.")
    spared_ids = {id(parameter) for _, parameter, spared in _places(model) if spared}
    decayed: dict[str, Any] = {"params": [], "names": [], "weight_decay": weight_decay}
    spared: dict[str, Any] = {"params": [], "names": [], "weight_decay": 0.0}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = spared if id(parameter) in spared_ids else decayed
            group["params"].append(parameter)
            group["names"].append(name)
    return [decayed, spared]


def _places(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """Every place that a parameter has in the model, tied ones several times, and whether that place spares it."""
    for module in model.modules():
        # A copy of a module doesn't have the marks: what a `Wide` one owns itself are dynamics, marked or not.
        spares = isinstance(module, nn.Embedding | Wide) or "Norm" in type(module).__name__
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            marked = getattr(parameter, "no_weight_decay", False)
            yield name, parameter, spares or marked or parameter.ndim <= 1 or "bias" in name.split("_")
