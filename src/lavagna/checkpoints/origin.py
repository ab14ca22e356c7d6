"""What the way back to a foreign format needs, kept beside a model that came from one."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lavagna.checkpoints.files import CONFIG, SAFETENSORS, TORCH, read_json
from lavagna.checkpoints.plan import Plan
from lavagna.checkpoints.safetensors_file import NAMES, SafetensorsFile, write_safetensors
from lavagna.checkpoints.torch_file import TorchFile
from lavagna.checkpoints.weights import Weights

ORIGIN = "origin-of-lavagna-1"
ORIGIN_CONFIG, ORIGIN_WEIGHTS = "origin.json", "origin.safetensors"
ORIGIN_FILES = frozenset({ORIGIN_CONFIG, ORIGIN_WEIGHTS})
_DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in NAMES}


@dataclass(frozen=True)
class Origin:
    """Where a converted model came from.

    - name: the format's; config: what it was read by.
    - text: its config.json to the letter, empty where it had none.
    - file: what a single file of its tensors is called; nest: the name under which that keeps them.
    - tensors: the dtype of each, in the order of the file.
    """

    name: str
    config: dict[str, Any]
    text: str
    file: str
    nest: str | None
    tensors: dict[str, str]

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that a tensor had."""
        return _DTYPES[self.tensors[name]]


def origin_of(made: Plan, path: Path) -> Origin:
    """The origin of a foreign checkpoint."""
    weights, parts = made.weights, _parts(made.weights)
    file = (path if path.is_dir() else path.parent) / CONFIG
    torchs = [part for part in parts if isinstance(part, TorchFile)]
    shards = weights.path.name.endswith(".json")
    name = ("pytorch_model.bin" if torchs else "model.safetensors") if shards else weights.path.name
    return Origin(
        name=made.format,
        config=dict(made.config),
        text=file.read_text(encoding="utf-8") if made.stated else "",
        file=name,
        nest=torchs[0].nest if torchs else None,
        tensors={name: str(entry.dtype).removeprefix("torch.") for name, entry in weights.entries.items()},
    )


def _parts(weights: Weights) -> list[Weights]:
    return getattr(weights, "parts", [weights])


def write_origin(folder: Path, origin: Origin, made: Plan) -> None:
    """Write an origin, and the tensors that the model does without, into a folder."""
    text = json.dumps({"format": ORIGIN, **dataclasses.asdict(origin)}, indent=2)
    (folder / ORIGIN_CONFIG).write_text(text + "\n", encoding="utf-8")
    unused = {name: entry for name, entry in made.weights.entries.items() if name in made.unused}
    if unused:
        tensors = ((name, made.weights.take(name)) for name in unused)
        write_safetensors(folder / ORIGIN_WEIGHTS, unused, tensors)


def read_origin(folder: Path) -> Origin | None:
    """The origin of the model in a folder of ours, None where it has none.

    Raises ValueError where it is not as it was written: it names a file that is to be made, and may be a stranger's.
    """
    file = folder / ORIGIN_CONFIG
    if not file.is_file():
        return None
    values = read_json(file)
    if values.pop("format", None) != ORIGIN:
        raise ValueError(f"load: '{file}' was not written by this version of lavagna. Convert the checkpoint again.")
    strange = _strange(values)
    if strange:
        raise ValueError(
            f"load: {strange!r} in '{file}' is not what lavagna writes there. Convert the checkpoint again."
        )
    return Origin(**values)


def _strange(values: dict[str, Any]) -> str | None:
    """The first key whose value no origin has."""
    plain: dict[str, Any] = {"name": str, "config": dict, "text": str, "file": str, "nest": str | None, "tensors": dict}
    for key in plain | values:
        if key not in plain or key not in values or not isinstance(values[key], plain[key]):
            return key
    file = Path(values["file"])
    if file.name != values["file"] or file.suffix not in (SAFETENSORS, *TORCH):
        return "file"
    known = all(isinstance(dtype, str) and dtype in _DTYPES for dtype in values["tensors"].values())
    return None if known else "tensors"


def unused_of(folder: Path) -> SafetensorsFile | None:
    """The tensors that a model in a folder of ours does without, None where there are none."""
    file = folder / ORIGIN_WEIGHTS
    return SafetensorsFile(file) if file.is_file() else None
