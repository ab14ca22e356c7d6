"""Packages that lavagna works without: how they are imported, and what is said where one is not installed."""

import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

# What warns while torchao is imported, of its kernels for GPUs and of how it calls torch, which nobody here can mend.
_NOISY = ("torchao", "torch.utils._pytree")


def optional(module: str, *, call: str, extra: str, why: str) -> ModuleType:
    """Import a module of a package that is installed by one of lavagna's extras.

    Raises `ValueError` where it is not: `call` is what wanted it, and `why` says in a clause what for.
    """
    with quiet():
        try:
            return importlib.import_module(module)
        except ImportError:
            install = f"pip install -e '.[{extra}]'"
            raise ValueError(f"{call}: {why}. Install it from lavagna's folder: {install}.") from None


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing but errors of the loggers that warn while torchao is imported, as it is by transformers too."""
    found = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in found]
    for logger in found:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(found, levels, strict=True):
            logger.setLevel(level)
