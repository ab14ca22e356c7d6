"""Read a model from a folder."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lavagna.checkpoints.save import CONFIG, FORMAT, WEIGHTS
from lavagna.checkpoints.tensors import check, fill, place, read
from lavagna.data import AbstractTokenizer, load_tokenizer
from lavagna.models import ModelConfig, StackConfig
from lavagna.models.kinds import outline, read_config

READ = "Read are folders that lavagna.save wrote"
PICKLES = (".bin", ".ckpt", ".pkl", ".pt", ".pth")


class Loaded(NamedTuple):
    """A `LanguageModel` or `SequenceClassifier` in eval mode, and the tokenizer beside it, or None where none is."""

    model: Any
    tokenizer: AbstractTokenizer | None


def load(
    path: str | os.PathLike[str], *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> Loaded:
    """Read the folder that `lavagna.save` wrote: the model, in eval mode, and its tokenizer.

    `dtype=None` keeps the dtypes of the file; float32 or narrower casts to that, and float64 casts everything. What a
    layer itself owns, decays and step sizes, is float32 at least, as under every cast of a model.

    Nothing is unpickled. Raises FileNotFoundError where a file is missing, ValueError where one is damaged, of another
    version or another format, or where its tensors are not those of the configuration; never returns a model half read.
    """
    folder = Path(path)
    if dtype is not None and not dtype.is_floating_point:
        raise ValueError(f"load: dtype must be floating, such as torch.bfloat16, or None, but came as {dtype}.")
    _refuse_files(folder)
    config = _config(folder)
    _refuse_pickles(folder)
    model = outline(config)
    tensors = check(read(folder / WEIGHTS), model, folder / WEIGHTS)
    place(model, torch.get_default_device() if device is None else torch.device(device))
    fill(model, tensors, dtype)
    return Loaded(model.eval(), load_tokenizer(folder))


def _refuse_files(folder: Path) -> None:
    if not folder.exists():
        raise FileNotFoundError(f"load: there is nothing at '{folder}'. {READ}.")
    if not folder.is_dir():
        if folder.suffix in PICKLES:
            raise ValueError(_about_pickles(folder))
        raise ValueError(f"load: '{folder}' is a file, but a folder was wanted. {READ}.")


def _refuse_pickles(folder: Path) -> None:
    pickles = sorted(file for file in folder.iterdir() if file.suffix in PICKLES)
    if not (folder / WEIGHTS).is_file() and pickles:
        raise ValueError(_about_pickles(pickles[0]))


def _about_pickles(file: Path) -> str:
    return (
        f"load: '{file}' is a pickle, which can run any code when it is read, so it is not read. Where you trust it, "
        "read it with torch.load(..., weights_only=True) and write its tensors with safetensors.torch.save_file."
    )


def _config(folder: Path) -> StackConfig:
    values = _json(folder)
    came = values.get("format")
    if came is None:
        kind = values.get("model_type", "no model_type")
        raise ValueError(f"load: '{folder / CONFIG}' has no format ({kind}), so it is not ours. {READ}.")
    if came != FORMAT:
        raise ValueError(
            f"load: '{folder / CONFIG}' is {came}, but this version of lavagna reads {FORMAT}. Use the version that "
            "wrote it, or save it again."
        )
    try:
        if not isinstance(values.get("model"), dict):
            raise ValueError(f"It wants an object under 'model', but has {values.get('model')!r}.")
        # Folders from before there were other kinds don't say that theirs is a language model.
        return read_config(values.get("kind", ModelConfig.kind), values["model"])
    except (TypeError, ValueError) as error:
        raise ValueError(f"load: '{folder / CONFIG}' describes no model. {error}") from None


def _json(folder: Path) -> dict[str, Any]:
    try:
        values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        _refuse_pickles(folder)
        raise FileNotFoundError(f"load: '{folder}' has no {CONFIG}. {READ}.") from None
    except ValueError as error:
        raise ValueError(f"load: '{folder / CONFIG}' is not JSON ({error}). Save the model again.") from None
    if not isinstance(values, dict):
        raise ValueError(f"load: '{folder / CONFIG}' holds no JSON object. {READ}.")
    return values
