"""Files that torch.save wrote, of which nothing but tensors is read."""

import ctypes
import mmap
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lavagna.checkpoints.weights import Entry, Weights

# What files of whole trainings keep their tensors under.
NESTS = ("state_dict", "model", "module", "model_state_dict")
ZIP = b"PK\x03\x04"
# What every pickle of torch.save begins with.
PICKLE = b"\x80"


class TorchFile(Weights):
    """One file of torch.save, by `torch.load(weights_only=True)` alone: what that refuses is refused.

    The zip format, torch's own since version 1.6, is mapped and its tensors are copied one by one. The older format can
    only be read whole; what has been taken of it is let go.

    `nest` is the name under which the file keeps its tensors, None where they are on top.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            start = file.read(len(ZIP))
        self._mapped = start == ZIP
        if not self._mapped and (not start.startswith(PICKLE) or len(start) < len(ZIP)):
            whole = "" if len(start) >= len(ZIP) else "whole "
            raise ValueError(f"load: '{path}' is not a {whole}file of torch.save. Copy or save it again.")
        self.nest: str | None = None
        self._held = self._read()
        self.entries = {name: Entry(tuple(tensor.shape), tensor.dtype) for name, tensor in self._held.items()}

    def take(self, name: str) -> Tensor:
        if name not in self._held:
            self._held = self._read()
        if self._mapped:
            copy = self._held[name].contiguous().clone()
            _unload(self._held[name])
            return copy
        tensor = self._held.pop(name)
        # What shares its memory with others is copied.
        alone = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
        return tensor if alone else tensor.contiguous().clone()

    def _read(self) -> dict[str, Tensor]:
        try:
            with warnings.catch_warnings():
                # Torch says of some pickles that it may not understand them, before it says whether it does.
                warnings.simplefilter("ignore")
                content = torch.load(self.path, map_location="cpu", weights_only=True, mmap=self._mapped)
            return self._tensors(content)
        except pickle.UnpicklingError as error:
            if "truncated" in str(error):
                raise self._broken(error) from None
            raise ValueError(self._about_pickles(error)) from None
        except (RuntimeError, EOFError, OSError, LookupError, TypeError, AttributeError) as error:
            raise self._broken(error) from None

    def _tensors(self, content: Any) -> dict[str, Tensor]:
        nests = [name for name in NESTS if isinstance(content, Mapping) and isinstance(content.get(name), Mapping)]
        if nests:
            self.nest, content = nests[0], content[nests[0]]
        strange = [name for name, value in content.items() if not _dense(value)] if isinstance(content, Mapping) else []
        if not isinstance(content, Mapping) or not content or strange:
            what = f"has {strange[0]}, which is no dense tensor" if strange else "holds no tensors by name"
            raise ValueError(f"load: '{self.path}' {what}. Save a model's state_dict with torch.save.")
        return {str(name): tensor.detach() for name, tensor in content.items()}

    def _broken(self, error: Exception) -> ValueError:
        # Not what torch said, which is a byte's number or the name of its reader's own error.
        return ValueError(
            f"load: '{self.path}' is not a whole file of torch.save ({type(error).__name__}). Copy or save it again."
        )

    def _about_pickles(self, error: Exception) -> str:
        found = next(
            (f" {line.strip().split('. ')[0].rstrip('.')}" for line in str(error).splitlines() if "GLOBAL" in line), ""
        )
        return (
            f"load: '{self.path}' is a pickle of more than tensors, which can run any code when it is read, so it is "
            f"not read.{found}. Where you trust it, read it with torch.load(..., weights_only=False) "
            "and write its tensors with safetensors.torch.save_file."
        )


def _unload(tensor: Tensor) -> None:
    """Let go of the pages of a mapped file that a tensor lies in: what was read counts as memory until then.

    They are read again when they are asked for. On systems without the call they stay until memory is short.
    """
    if tensor.nbytes and hasattr(mmap, "MADV_DONTNEED"):
        storage, page = tensor.untyped_storage(), mmap.PAGESIZE
        start = storage.data_ptr() // page * page
        length = storage.data_ptr() + storage.nbytes() - start
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), mmap.MADV_DONTNEED)


def _dense(value: object) -> bool:
    """Whether it is a tensor with a number at every place: none on the meta device, which has no numbers."""
    if not isinstance(value, Tensor) or value.is_meta or value.is_nested or value.is_quantized:
        return False
    return value.layout == torch.strided
