"""Labeled sequences from a NumPy archive, checked before anything is learned from them."""

import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lavagna.data.examples import Examples

# Values, offsets and labels by name; without offsets, row i of the values is sequence i.
LAYOUTS = (("x", None, "y"), ("values", "offsets", "labels"), ("audio", "offsets", "digit"))
HELD_OUT = ("split", "index")
HELD_OUT_INDICES = 5
# Below this share of an integer type's range, scaling by the type would leave next to nothing of the numbers.
LEAST_SHARE = 1e-3


class Labeled(NamedTuple):
    """The sequences of a file, and which of them it says to hold out; None where it doesn't say."""

    examples: Examples
    held_out: np.ndarray | None


def read_labeled(path: Path, *, label: str | None = None) -> Labeled:
    """The sequences of an .npz file, by the names of its arrays, without unpickling anything.

    - `x` (n t) or (n t f) and `y` (n): sequences of one length; or
    - `values` (N) or (N f), `offsets` (n + 1) and `labels` (n): sequence i is `values[offsets[i] : offsets[i + 1]]`.
      `audio`, `offsets` and `digit` are taken likewise.

    `label` names another array of labels. Labels are integers from 0, each with an example. Held out are the examples
    where `split` (n) is true, not zero or "test"; else those where `index` (n), the number of a recording among those
    of its kind, is 0 to 4.

    Raises `FileNotFoundError`, or `ValueError` on whatever is wrong with the file, in one line that names it.
    """
    arrays = _Arrays(path)
    layout = next((names for names in LAYOUTS if names[0] in arrays.names), None)
    if layout is None:
        raise arrays.refusal("has neither x and y nor values, offsets and labels")
    values, offsets, default = layout
    labels = _labels(arrays, label or default)
    count = len(labels)
    x, bounds = _rectangle(arrays, values, count) if offsets is None else _ragged(arrays, values, offsets, count)
    _check_numbers(arrays, values, x, bounds)
    return Labeled(Examples(x, bounds, labels), _held_out(arrays, len(labels)))


class _Arrays:
    """The arrays of a file, read one by one."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise FileNotFoundError(
                f"classify: there is no file '{path}'. Give an .npz file, or the word digits for scikit-learn's digits."
            )
        self._path = path
        try:
            self._file = np.load(path, allow_pickle=False)
        except (ValueError, EOFError, OSError, zipfile.BadZipFile):
            raise self.refusal("is not a whole .npz file. Write it with numpy.savez") from None
        if not isinstance(self._file, np.lib.npyio.NpzFile):
            raise self.refusal(
                "is one array, not an .npz file of several. Write it with numpy.savez(file, x=..., y=...)"
            )
        self.names = self._file.files

    def read(self, name: str) -> np.ndarray:
        """One array. Raises ValueError where it is missing, damaged, or made of Python objects."""
        if name not in self.names:
            raise self.refusal(f"has no array {name}")
        try:
            return self._file[name]
        except (EOFError, OSError, zipfile.BadZipFile, zlib.error):
            raise self.refusal(f"is damaged in {name}. Copy or write it again") from None
        except ValueError:
            raise self.refusal(f"holds Python objects in {name}, which are not read. Save plain numbers") from None

    def refusal(self, reason: str) -> ValueError:
        """An error that names the file, and its arrays where it has some."""
        listed = f"; it has {', '.join(self.names) or 'none'}" if reason.startswith("has n") else ""
        return ValueError(f"classify: '{self._path}' {reason}{listed}.")


def _labels(arrays: _Arrays, name: str) -> np.ndarray:
    labels = arrays.read(name)
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise arrays.refusal(
            f"has labels {name} of {labels.dtype} {labels.shape}, but one integer an example was wanted"
        )
    if not len(labels):
        raise arrays.refusal(f"holds no example: {name} is empty")
    found, counts = np.unique(labels.astype(np.int64), return_counts=True)
    if found[0] < 0 or len(counts) != found[-1] + 1:
        empty = -1 if found[0] < 0 else next(i for i, label in enumerate([*found, -1]) if i != label)
        reason = f"label {found[0]}" if empty < 0 else f"no example of label {empty}, but some of {found[-1]}"
        raise arrays.refusal(f"has {reason} in {name}; labels run from 0, and each has an example")
    return labels.astype(np.int64)


def _rectangle(arrays: _Arrays, name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    x = arrays.read(name)
    if x.ndim not in (2, 3) or 0 in x.shape:
        raise arrays.refusal(f"has {name} of shape {x.shape}, but (n, t) or (n, t, f) was wanted, none of them 0")
    if len(x) != count:
        raise arrays.refusal(f"has {len(x)} sequences in {name}, but {count} labels")
    n, t = x.shape[:2]
    return x.reshape(n * t, -1), np.arange(n + 1) * t


def _ragged(arrays: _Arrays, name: str, offsets_name: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    x, offsets = arrays.read(name), arrays.read(offsets_name)
    if x.ndim not in (1, 2) or 0 in x.shape:
        raise arrays.refusal(f"has {name} of shape {x.shape}, but (N,) or (N, f) was wanted, none of them 0")
    if offsets.dtype.kind not in "iu" or offsets.shape != (count + 1,):
        raise arrays.refusal(
            f"has {offsets_name} of {offsets.dtype} {offsets.shape}, but {count + 1} integers were wanted for {count} "
            "labels"
        )
    offsets = offsets.astype(np.int64)
    if offsets[0] != 0 or offsets[-1] != len(x) or (np.diff(offsets) < 1).any():
        raise arrays.refusal(
            f"has {offsets_name} that do not rise from 0 to {len(x)}, the length of {name}: every sequence has a step"
        )
    return x.reshape(len(x), -1), offsets


def _check_numbers(arrays: _Arrays, name: str, x: np.ndarray, offsets: np.ndarray) -> None:
    if x.dtype.kind not in "fiub":
        raise arrays.refusal(f"has {name} of {x.dtype}, but numbers were wanted")
    if x.dtype.kind == "f" and not (finite := np.isfinite(x).all(1)).all():
        first = int(np.searchsorted(offsets, int(np.argmin(finite)), side="right")) - 1
        raise arrays.refusal(f"holds NaN or infinity in {name}, first in sequence {first}")
    if x.dtype.kind in "iu":
        largest = max(abs(int(x.max())), abs(int(x.min())))
        if 0 < largest < LEAST_SHARE * np.iinfo(x.dtype).max:
            raise arrays.refusal(
                f"has {name} of {x.dtype}, over whose range integers are scaled, but none is beyond {largest}. Save it "
                "as a type that the numbers fill, such as uint8, or as floats"
            )


def _held_out(arrays: _Arrays, count: int) -> np.ndarray | None:
    name = next((name for name in HELD_OUT if name in arrays.names), None)
    if name is None:
        return None
    said = arrays.read(name)
    if said.shape != (count,) or said.dtype.kind not in "biuU":
        raise arrays.refusal(
            f"has {name} of {said.dtype} {said.shape}, but {count} integers, booleans or words were wanted"
        )
    if name == "index" and said.dtype.kind in "iu":
        return said < HELD_OUT_INDICES
    return said == "test" if said.dtype.kind == "U" else said != 0
