"""Read a model from a folder or a file."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lavagna.checkpoints.plan import plan
from lavagna.checkpoints.tensors import fill, place
from lavagna.data import AbstractTokenizer, load_tokenizer


class Loaded(NamedTuple):
    """A `LanguageModel` or `SequenceClassifier` in eval mode, and the tokenizer beside it, or None where none is."""

    model: Any
    tokenizer: AbstractTokenizer | None


def load(
    path: str | os.PathLike[str], *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Loaded:
    """Read a checkpoint: a folder that `lavagna.save` wrote, or a foreign one, told apart by its contents.

    A foreign checkpoint is a folder with a file of safetensors or of torch, or with shards and their index, or such a
    file alone; `lavagna.checkpoints.formats` has what is known. The model is in eval mode.

    `dtype=None` keeps the dtypes of the file; float32 or narrower casts to that, and float64 casts everything. What a
    layer itself owns, decays and step sizes, is float32 at least, as under every cast of a model.

    Tensors are read one by one, so that memory holds the model and little more. Files of torch are read by
    `torch.load(weights_only=True)`, and what that refuses is refused: nothing is executed. Raises FileNotFoundError
    where a file is missing, ValueError where one is damaged, of another version or an unknown format, or where its
    tensors are not those of the configuration; never returns a model half read.
    """
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"load: dtype must be floating, such as torch.bfloat16, or None, but came as {dtype}.")
    path = Path(path)
    made = plan(path)
    where = torch.get_default_device() if device is None else torch.device(device)
    place(made.model, where)
    fill(made, where, dtype)
    rows = getattr(made.model.config, "vocab_rows", None)
    return Loaded(made.model.eval(), load_tokenizer(path if path.is_dir() else path.parent, rows=rows))
