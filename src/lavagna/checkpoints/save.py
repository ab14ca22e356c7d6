"""Write a model to a folder."""

import json
import os
import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from lavagna.checkpoints.files import CONFIG
from lavagna.checkpoints.folder import whole_folder
from lavagna.checkpoints.plan import FORMAT
from lavagna.data import TOKENIZER_FILES, AbstractTokenizer
from lavagna.models import Stack
from lavagna.modules.eight_bit import EightBit

WEIGHTS = "model.safetensors"
# Where a model came from is no longer true of another that takes its place.
FILES = frozenset({WEIGHTS, CONFIG, "origin.json", "origin.safetensors"}) | TOKENIZER_FILES


def save(model: Stack, path: str | os.PathLike[str], tokenizer: AbstractTokenizer | None = None) -> None:
    """Write a folder with the model's tensors, its configuration and the tokenizer; `lavagna.load` reads it.

    The folder is complete and on the disk before it takes its name, and a checkpoint of that name is replaced at once:
    a kill, a full disk or a power cut leave the old one whole or the new one whole. Tensors keep their dtype; a tied
    matrix is written once. The configuration says which kind of model it is.

    Raises ValueError where `model` is no model of ours with numbers of full width, OSError where it can't be written.
    """
    if not isinstance(model, Stack):
        raise ValueError(
            "save: the model must be a LanguageModel or a SequenceClassifier, but came as "
            f"{type(model).__name__}. "
            "Save the model that was wrapped: .module of data-parallel, ._orig_mod of torch.compile."
        )
    if any(tensor.is_meta for tensor in model.state_dict().values()):
        raise ValueError("save: the model is on the meta device and has no numbers. Use to_empty and reset_parameters.")
    if any(isinstance(part, EightBit) for part in model.modules()):
        raise ValueError(
            "save: the model's weights are in 8 bits, which no file of ours holds. "
            "Save the model that it was made of, and quantize again after loading."
        )
    tensors = _apart(model.state_dict())
    config = json.dumps({"format": FORMAT, "kind": model.config.kind, "model": model.config.to_dict()}, indent=2) + "\n"
    try:
        with whole_folder(Path(path), files=FILES) as folder:
            (folder / CONFIG).write_text(config, encoding="utf-8")
            save_file(tensors, folder / WEIGHTS, {"format": "pt"})
            # The library makes a file that only its owner may read.
            shutil.copymode(folder / CONFIG, folder / WEIGHTS)
            if tokenizer is not None:
                tokenizer.save(folder)
    except (OSError, SafetensorError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).removesuffix(".")
        raise OSError(
            f"save: '{path}' can't be written ({reason}); what was there is as it was. "
            "Free some space or choose another folder."
        ) from error


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, of which no two share storage: the file format refuses those."""
    apart: dict[str, Tensor] = {}
    seen = set()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        apart[name] = own.clone() if own.untyped_storage().data_ptr() in seen else own
        seen.add(own.untyped_storage().data_ptr())
    return apart
