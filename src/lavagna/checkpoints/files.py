"""Which files of a folder hold a model, whatever they are called."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lavagna.checkpoints.safetensors_file import SafetensorsFile
from lavagna.checkpoints.torch_file import TorchFile
from lavagna.checkpoints.weights import Shards, Weights

CONFIG = "config.json"
SAFETENSORS, TORCH = ".safetensors", (".bin", ".pth", ".pt", ".ckpt", ".pkl")
# In this order; what an index does not list is not looked at.
NAMES = ("model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json", "pytorch_model.bin")
INDEX = ".index.json"
# Files of trainings that stand beside models.
BESIDE = {"training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.bin", "scheduler.pt", "scaler.pt"}
# Faults that an error message lists before it stops.
LISTED = 6
WANTED = f"Read are {', '.join(NAMES)}, or one file ending in {SAFETENSORS}, .bin, .pth or .pt"


def open_weights(path: Path) -> Weights:
    """The tensors of a folder or of a single file.

    Raises FileNotFoundError where there are none or a shard is gone, ValueError where one can't be read.
    """
    if path.is_file():
        return _open_file(path)
    if not path.exists():
        raise FileNotFoundError(f"load: there is nothing at '{path}'. Give a checkpoint's folder or file.")
    if not path.is_dir():
        raise ValueError(f"load: '{path}' is neither a folder nor a file. {WANTED}.")
    # A link whose end is gone counts: it is what was meant, and another file would be another model.
    found = next((path / name for name in NAMES if (path / name).is_file() or (path / name).is_symlink()), None)
    if found is None:
        others = [file for file in sorted(path.iterdir()) if file.suffix in (SAFETENSORS, *TORCH)]
        others = [file for file in others if file.name not in BESIDE]
        if len(others) > 1:
            named = ", ".join(file.name for file in others)
            raise ValueError(f"load: '{path}' holds {named}, and no index says which to read. Give one file's path.")
        if not others:
            raise FileNotFoundError(f"load: '{path}' has no {NAMES[1]}. {WANTED}. Copy the whole folder.")
        found = others[0]
    return _open_shards(found) if found.name.endswith(INDEX) and found.is_file() else _open_file(found)


def read_json(file: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises FileNotFoundError, or ValueError where there is none."""
    try:
        # Some editors put a mark of the byte order in front.
        values = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise FileNotFoundError(f"load: '{file.parent}' has no {file.name}. Copy the whole folder.") from None
    # A RecursionError is of brackets within brackets, thousands deep.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"load: '{file}' is not JSON ({error}). Copy or save it again.") from None
    if not isinstance(values, dict):
        raise ValueError(f"load: '{file}' holds no JSON object. Copy or save it again.")
    return values


def _open_file(file: Path) -> Weights:
    if file.is_symlink() and not file.is_file():
        raise FileNotFoundError(f"load: '{file}' is a link to where no file is. Copy what it stands for.")
    if file.suffix == SAFETENSORS:
        return SafetensorsFile(file)
    if file.suffix in TORCH:
        return TorchFile(file)
    raise ValueError(f"load: '{file}' is a file, but no checkpoint. {WANTED}.")


def _open_shards(index: Path) -> Weights:
    listed = read_json(index).get("weight_map")
    if not isinstance(listed, Mapping) or not listed or not all(isinstance(file, str) for file in listed.values()):
        raise ValueError(f"load: '{index}' has no weight_map from names to files. Copy it again.")
    names = list(dict.fromkeys(listed.values()))
    strange = [name for name in names if Path(name).name != name]
    if strange:
        raise ValueError(f"load: '{index}' lists {strange[0]!r}, which is outside its folder. Copy it again.")
    gone = [name for name in names if not (index.parent / name).is_file()]
    if gone:
        more = f" and {len(gone) - LISTED} more" if len(gone) > LISTED else ""
        raise FileNotFoundError(
            f"load: '{index.parent}' has no {', '.join(gone[:LISTED])}{more}, of {len(names)} shards that "
            f"{index.name} lists. Copy them too."
        )
    shards = Shards(index, [_open_file(index.parent / name) for name in names])
    missing = [f"{name} (in {file})" for name, file in listed.items() if name not in shards.entries]
    if missing:
        raise ValueError(
            f"load: {', '.join(missing[:LISTED])} is listed by '{index}' but not there. Copy the shards again."
        )
    return shards
