"""Files of safetensors, read and written one tensor at a time."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from lavagna.checkpoints.weights import Entry, Weights

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = 8


class SafetensorsFile(Weights):
    """One file of safetensors.

    Its bytes are read into new memory instead of being mapped, so that what has been read leaves nothing behind, and
    so that each tensor begins where any other would, which may change how sums are rounded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            str(path).encode()
        except UnicodeEncodeError:
            raise ValueError(
                f"load: '{path}' has a name that is not UTF-8, and safetensors' library opens no such file. Rename it."
            ) from None
        try:
            # The library's own checks: that the header is one, and that its places fill the file.
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ValueError(
                f"load: '{path}' is not a whole safetensors file ({error}). Copy or save it again."
            ) from None
        self.entries, self._starts = {}, {}
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH), "little")
            header = json.loads(file.read(length), object_pairs_hook=self._once)
        for name, place in header.items():
            if name != "__metadata__":
                self.entries[name] = Entry(tuple(place["shape"]), self._dtype(name, place["dtype"]))
                self._starts[name] = _LENGTH + length + place["data_offsets"][0]

    def take(self, name: str) -> Tensor:
        entry = self.entries[name]
        data = torch.empty(math.prod(entry.shape) * entry.dtype.itemsize, dtype=torch.uint8, device="cpu")
        with self.path.open("rb") as file:
            file.seek(self._starts[name])
            if file.readinto(data.numpy().data) != len(data):
                raise ValueError(f"load: '{self.path}' ends within {name}. Copy or save it again.")
        return data.view(entry.dtype).reshape(entry.shape)

    def _once(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
        if twice:
            raise ValueError(f"load: '{self.path}' has {', '.join(twice)} twice. Save it again.")
        return dict(pairs)

    def _dtype(self, name: str, dtype: str) -> torch.dtype:
        if dtype not in DTYPES:
            raise ValueError(f"load: {name} in '{self.path}' is {dtype}, which is not read. Save it as F32 or BF16.")
        return DTYPES[dtype]


def write_safetensors(path: Path, entries: Mapping[str, Entry], tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Write a file of tensors that come one by one, in any order, so that none has to be kept.

    Wider numbers lie before narrower ones, so that each begins at a multiple of its size.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    starts, end = {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: -item[1].dtype.itemsize):
        starts[name], end = end, end + math.prod(entry.shape) * entry.dtype.itemsize
        header[name] = {"dtype": NAMES[entry.dtype], "shape": list(entry.shape), "data_offsets": [starts[name], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    missing = set(entries)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(_LENGTH, "little") + text)
        for name, tensor in tensors:
            assert (tuple(tensor.shape), tensor.dtype) == entries[name], (name, tensor.shape, entries[name])
            missing.remove(name)
            file.seek(_LENGTH + len(text) + starts[name])
            file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    assert not missing, missing
