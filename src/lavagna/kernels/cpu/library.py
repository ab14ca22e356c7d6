"""The compiled library that fits this processor, or why there is none."""

import ctypes
import os
from functools import cache
from typing import NamedTuple

from lavagna.kernels.cpu.build import SOURCE, digest, levels, library_path


class Library(NamedTuple):
    """The loaded kernels and their level of vectors; without `functions`, `level` says why."""

    functions: ctypes.CDLL | None
    level: str


@cache
def library() -> Library:
    """The kernels of the best level that the processor has, or of LAVAGNA_CPU_LEVEL: plain, avx2, avx512, or none."""
    wanted = os.environ.get("LAVAGNA_CPU_LEVEL", "")
    if wanted == "none":
        return Library(None, "switched off by LAVAGNA_CPU_LEVEL=none")
    path = library_path("plain")
    if not path.exists():
        return Library(None, "not built: no C++ compiler was found when lavagna was installed")
    try:
        best = _text(ctypes.CDLL(str(path)).lavagna_level)
        names = list(levels())
        if wanted and (wanted not in names or names.index(wanted) > names.index(best)):
            fit = ", ".join(names[: names.index(best) + 1])
            raise ValueError(f"LAVAGNA_CPU_LEVEL must be one of {fit} or none on this processor, but is {wanted!r}.")
        functions = ctypes.CDLL(str(library_path(wanted or best)))
    except (OSError, AttributeError) as error:
        return Library(None, f"not loadable: {error}")
    # An installed package may come without the sources; where they are, what was built of others is not used.
    if SOURCE.is_dir() and _text(functions.lavagna_digest) != digest():
        return Library(
            None, "built from other sources: run python src/lavagna/kernels/cpu/build.py or pip install again"
        )
    return Library(functions, wanted or best)


def _text(function) -> str:
    function.restype = ctypes.c_char_p
    return function().decode()
