"""The compiled library that fits this processor, or why there is none."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import NamedTuple

from lavagna.kernels.cpu import build
from lavagna.kernels.cpu.build import SOURCE, built_of, digest, levels, library_path

MEND = f"run python {build.__file__}, or pip install again"


class Library(NamedTuple):
    """The loaded kernels and their level of vectors; without `functions`, `level` says why.

    `passed_over` says of files that would have served better why they can't, and how to mend them.
    """

    functions: ctypes.CDLL | None
    level: str
    passed_over: str = ""


class _Misnamed(Library):
    """In place of a level that isn't there: whoever asks for the kernels gets the ValueError, not who imports them."""

    @property
    def functions(self) -> ctypes.CDLL:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise ValueError(self.level)


@cache
def library() -> Library:
    """The kernels of the best level that the processor and the files have, or of LAVAGNA_CPU_LEVEL.

    That is plain, avx2, avx512, or none; for another the `functions` of what is returned raise ValueError.
    """
    wanted = os.environ.get("LAVAGNA_CPU_LEVEL", "")
    if wanted == "none":
        return Library(None, "switched off by LAVAGNA_CPU_LEVEL=none")
    names, faults = list(levels()), {}
    # Each of them knows what this processor can take.
    first = next((name for name in names if _load(name, faults) is not None), None)
    fit = names if first is None else names[: names.index(_best(_load(first, faults))) + 1]
    if wanted and wanted not in fit:
        must = f"LAVAGNA_CPU_LEVEL must be one of {', '.join(fit)} or none on this processor, but is {wanted!r}. "
        return _Misnamed(None, f"{must}Name one of them, or unset it and the best is taken.")
    if first is None:
        if not any(library_path(name).exists() for name in names):
            return Library(None, f"not built, as where no C++ compiler is found at the installation; {MEND}")
        return Library(None, _listed(faults))
    for name in [wanted] if wanted else reversed(fit):
        functions = _load(name, faults)
        if functions is not None:
            return Library(functions, name, _listed(faults))
    return Library(None, _listed(faults))


def _load(level: str, faults: dict[str, str]) -> ctypes.CDLL | None:
    """The library of a level, or None, and among the faults why."""
    path = library_path(level)
    try:
        fault = _fault(path)
        if fault is None:
            return ctypes.CDLL(str(path))
    except OSError as error:
        fault = f"can't be loaded: {error}"
    faults[level] = f"{path.name} {fault}"
    return None


def _fault(path: Path) -> str | None:
    """What is wrong with a file, told without loading it, or None."""
    if not path.is_file():
        return "is not there"
    of = built_of(path)
    if of is None:
        return "is not what a build left there: it was cut, changed, or is another's"
    # An installed package may come without the sources.
    return "was built from other sources" if SOURCE.is_dir() and of != digest() else None


def _listed(faults: dict[str, str]) -> str:
    return f"{', '.join(faults.values())}: {MEND}" if faults else ""


def _best(functions: ctypes.CDLL | None) -> str:
    assert functions is not None
    functions.lavagna_level.restype = ctypes.c_char_p
    return functions.lavagna_level().decode()
