"""Tensors of a file put into a model, after every name and shape is found right."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lavagna.models import Stack
from lavagna.modules.precision import Wide, wide_dtype

EMBEDDING, HEAD = "embedding.weight", "head.weight"
# Faults that an error message lists before it stops.
LISTED = 6


def read(file: Path) -> dict[str, Tensor]:
    """Every tensor of a safetensors file. Raises FileNotFoundError, or ValueError where it is not a whole one."""
    if not file.is_file():
        raise FileNotFoundError(f"load: '{file.parent}' has no {file.name}. Copy the whole folder, or save it again.")
    try:
        with safe_open(file, framework="pt") as opened:
            # Clones because a tensor may start anywhere in a file, and where it starts may change how sums are rounded.
            return {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"load: '{file}' is not a whole safetensors file ({error}). Copy or save it again.") from None


def check(tensors: dict[str, Tensor], model: Stack, file: Path) -> dict[str, Tensor]:
    """The tensors by the names that the model has. Raises ValueError with all that is missing, extra or misshapen."""
    if getattr(model.config, "tie_embeddings", False):
        tensors = _tied(tensors, file)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wrong = [
        f"{name} is {tuple(tensors[name].shape)} where the configuration wants {shape}"
        for name, shape in wanted.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    wrong += [f"{name} is missing" for name in wanted if name not in tensors]
    wrong += [f"{name} is extra" for name in tensors if name not in wanted]
    wrong += [f"{name} is {x.dtype}, not floating" for name, x in tensors.items() if not x.is_floating_point()]
    if wrong:
        more = f"; and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
        raise ValueError(f"load: '{file}' does not fit its config.json: {'; '.join(wrong[:LISTED])}{more}.")
    return tensors


def _tied(tensors: dict[str, Tensor], file: Path) -> dict[str, Tensor]:
    """With tied embeddings either name will do, and both where they hold the same."""
    if HEAD not in tensors:
        return tensors
    rest = {name: tensor for name, tensor in tensors.items() if name != HEAD}
    if EMBEDDING in tensors and not torch.equal(tensors[EMBEDDING], tensors[HEAD]):
        raise ValueError(
            f"load: '{file}' has an {EMBEDDING} and a {HEAD} that differ, but its config.json ties them. "
            "Set tie_embeddings to false there to keep both, or remove one from the file."
        )
    return rest | {EMBEDDING: tensors[HEAD]}


class _WithoutDrawing(TorchDispatchMode):
    """Leaves out the drawing of random numbers, which takes long and which a file is about to replace."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func in (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default):
            return args[0]
        return func(*args, **(kwargs or {}))


def place(model: Stack, device: torch.device) -> None:
    """Give an outline its memory, with every mark and buffer in place; its parameters hold nothing yet."""
    if device.type != "meta":
        model.to_empty(device=device)
        with _WithoutDrawing():
            model.reset_parameters()


def fill(model: Stack, tensors: dict[str, Tensor], dtype: torch.dtype | None) -> None:
    """Put tensors into the model's places, in the given dtype or their own; what layers own in float32 at least."""
    wide = _wide(model)
    places = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, tensor in tensors.items():
        wanted = dtype or tensor.dtype
        places[name].data = tensor.to(places[name].device, wide_dtype(wanted) if name in wide else wanted)


def _wide(model: Stack) -> set[str]:
    """Names of what no cast narrows: rates, step sizes, base vectors."""
    return {
        f"{place}.{name}"
        for place, module in model.named_modules()
        if isinstance(module, Wide)
        for name, _ in module.named_parameters(recurse=False)
    }
