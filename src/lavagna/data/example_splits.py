"""Labeled sequences, a part to train on and a part to judge by, and the file that a run keeps of them."""

import hashlib
import json
import os
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lavagna.atomic_file import atomic_file
from lavagna.data.digit_pictures import DIGITS, digits
from lavagna.data.examples import Examples, scaled
from lavagna.data.labeled_file import read_labeled
from lavagna.data.permutation import permuted

FORMAT = "lavagna examples 1"
HELD_OUT_SHARE = 0.2


@dataclass(frozen=True)
class ExamplesHeader:
    """What a file of examples says of itself. Lengths are in steps; `fingerprint` is a hash of all that is learned."""

    source: str
    train: int
    validation: int
    features: int
    classes: int
    shortest: int
    longest: int
    fingerprint: str


class ExampleSplits(NamedTuple):
    """The sequences to train on, those to judge by, and what there is to say of them."""

    train: Examples
    validation: Examples
    header: ExamplesHeader


def read_examples(
    source: str | os.PathLike,
    *,
    label: str | None = None,
    enlarge: int | None = None,
    decimate: int = 1,
    validation: float | None = None,
) -> ExampleSplits:
    """Read labeled sequences and split them.

    `source` is the word `digits` (see `digits`; a file of that name is `./digits`) or an .npz file (see
    `read_labeled`). `decimate` replaces every so many steps of a sequence by their mean, the last of them by the mean
    of what is left: a box filter, then every n-th step. `enlarge` is of digits alone, `label` of files alone.

    Held out is what the file says. Where it doesn't, and for the digits, it is the share `validation` (a fifth if None)
    of the examples, picked by a permutation that depends on their number alone; a share that is given goes before the
    file's word.

    Raises what they raise, and `ValueError` on options that don't fit and where a part or a class would be empty.
    """
    examples, held_out = _read(source, label, enlarge, decimate, validation)
    return _split(str(source), examples, held_out)


def prepare_examples(
    source: str | os.PathLike,
    file: str | os.PathLike,
    *,
    label: str | None = None,
    enlarge: int | None = None,
    decimate: int = 1,
    validation: float | None = None,
) -> ExampleSplits:
    """Read labeled sequences as `read_examples` does, and keep them in a file that `open_examples` reads.

    The file is written whole or not at all. Raises what `read_examples` raises; `OSError` where it can't be written.
    """
    examples, held_out = _read(source, label, enlarge, decimate, validation)
    splits = _split(str(source), examples, held_out)
    _write(Path(file), examples, held_out, splits.header)
    return splits


def _read(
    source: str | os.PathLike, label: str | None, enlarge: int | None, decimate: int, validation: float | None
) -> tuple[Examples, np.ndarray]:
    _check_options(source, label, enlarge, decimate, validation)
    held_out = None
    if source == DIGITS:
        examples = digits(enlarge=enlarge)
    else:
        examples, held_out = read_labeled(Path(source), label=label)
    if held_out is None or validation is not None:
        held_out = _picked(len(examples), HELD_OUT_SHARE if validation is None else validation)
    if decimate > 1:
        examples = _decimated(examples, decimate)
    return examples, held_out


def open_examples(file: str | os.PathLike) -> ExampleSplits:
    """Read what `prepare_examples` kept. Raises `FileNotFoundError`, or `ValueError` where it is not a whole one."""
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(f"open_examples: there is no '{path}'. Make it with prepare_examples(source, file).")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            about = json.loads(str(arrays["about"]))
            known = about.pop("format") == FORMAT
            examples = Examples(arrays["values"], arrays["offsets"], arrays["labels"])
            splits = _split(about["source"], examples, arrays["held_out"])
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, AttributeError):
        known, splits, about = False, None, None
    if not known or splits is None or asdict(splits.header) != about:
        raise ValueError(f"open_examples: '{path}' is not a whole file of examples of this version. Prepare it again.")
    return splits


def _check_options(source, label: str | None, enlarge: int | None, decimate: int, validation: float | None) -> None:
    if enlarge is not None and source != DIGITS:
        raise ValueError(f"classify: enlarge is for the pictures of {DIGITS}, but the source is '{source}'.")
    if label is not None and source == DIGITS:
        raise ValueError(f"classify: label names an array of a file, but the source is {DIGITS}, which has one label.")
    if decimate < 1:
        raise ValueError(f"classify: decimate came as {decimate}, but 1 or more steps to a mean were wanted.")
    if validation is not None and not 0 < validation < 1:
        raise ValueError(f"classify: validation came as {validation}, but a share above 0 and below 1 was wanted.")


def _picked(count: int, share: float) -> np.ndarray:
    return permuted(np.arange(count), count, key=(count,)) < round(share * count)


def _decimated(examples: Examples, size: int) -> Examples:
    lengths = examples.lengths
    starts = [np.arange(start, start + length, size) for start, length in zip(examples.offsets, lengths, strict=False)]
    at = np.concatenate(starts)
    counts = np.diff(np.concatenate([at, examples.offsets[-1:]]))
    sums = np.add.reduceat(scaled(examples.values).astype(np.float64), at, axis=0)
    offsets = np.concatenate([[0], np.cumsum(-(-lengths // size))])
    return Examples((sums / counts[:, None]).astype(np.float32), offsets, examples.labels)


def _split(source: str, examples: Examples, held_out: np.ndarray) -> ExampleSplits:
    train, validation = (examples.select(np.flatnonzero(part)) for part in (~held_out, held_out))
    classes = int(examples.labels.max()) + 1
    if not len(train) or not len(validation):
        raise ValueError(
            f"classify: of the {len(examples)} examples of '{source}' {len(validation)} are held out, which leaves "
            "nothing to train on or nothing to judge by. Give more of them, or another share to hold out."
        )
    absent = sorted(set(range(classes)) - set(train.labels.tolist()))
    if absent:
        raise ValueError(
            f"classify: all examples of label {absent[0]} in '{source}' are held out, so it can't be learned. "
            "Give more of them, or another share to hold out."
        )
    digest = hashlib.sha256()
    for array in (examples.values, examples.offsets, examples.labels, held_out):
        digest.update(f"{array.dtype.str} {array.shape} ".encode() + np.ascontiguousarray(array).tobytes())
    lengths = examples.lengths
    sizes = (examples.features, classes, int(lengths.min()), int(lengths.max()))
    return ExampleSplits(
        train, validation, ExamplesHeader(source, len(train), len(validation), *sizes, digest.hexdigest())
    )


def _write(path: Path, examples: Examples, held_out: np.ndarray, header: ExamplesHeader) -> None:
    about = json.dumps({"format": FORMAT, **asdict(header)})
    with atomic_file(path) as file:
        np.savez(
            file, about=about, values=examples.values, offsets=examples.offsets, labels=examples.labels,
            held_out=held_out,
        )  # fmt: skip
