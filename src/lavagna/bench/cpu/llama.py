"""llama.cpp with the weights of a model of ours, a text at a time."""

import ctypes
import importlib
import logging
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lavagna.bench.cpu import gguf
from lavagna.models import LanguageModel

PACKAGE = "llama-cpp-python"
# What llama.cpp rounds matrices to, as it numbers files of such, and the bytes that a number then takes.
ROUNDED = {"bfloat16": 32, "int8": 7}
NUMBER = {"float32": 4, "bfloat16": 2, "int8": 34 / 32}
# Steps that a sequence may have: llama.cpp keeps a book of them, though no memory grows.
LENGTH = 1 << 12


class Llama:
    """A model in a file, and one text that it has read, on as many threads as torch has.

    `nbytes`: of all its tensors. Errors of llama.cpp are RuntimeErrors.
    """

    def __init__(self, path: Path) -> None:
        self._lib = _library()
        self._model = self._lib.llama_model_load_from_file(bytes(path), self._lib.llama_model_default_params())
        if not self._model:
            raise RuntimeError(f"llama.cpp can't read '{path}'.")
        options = self._lib.llama_context_default_params()
        options.n_ctx = LENGTH
        options.n_threads = options.n_threads_batch = torch.get_num_threads()
        self._context = self._lib.llama_init_from_model(self._model, options)
        self._rows = self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(self._model))
        self.nbytes: int = self._lib.llama_model_size(self._model)

    def close(self) -> None:
        """Give the memory back."""
        self._lib.llama_free(self._context)
        self._lib.llama_model_free(self._model)

    def read(self, ids: Sequence[int]) -> None:
        """Forget what was read, and read a text."""
        self._lib.llama_memory_clear(self._lib.llama_get_memory(self._context), False)
        self.append(ids)

    def append(self, ids: Sequence[int]) -> None:
        """Read on."""
        tokens = (self._lib.llama_token * len(ids))(*ids)
        if code := self._lib.llama_decode(self._context, self._lib.llama_batch_get_one(tokens, len(ids))):
            raise RuntimeError(f"llama_decode returns {code}.")

    def step(self, tokens: int) -> None:
        """So many steps, each by the likeliest id of the one before."""
        for _ in range(tokens):
            self.append([int(self.logits.argmax())])

    @property
    def logits(self) -> Tensor:
        """Of the last id (rows), in a buffer that the next one writes to."""
        found = self._lib.llama_get_logits_ith(self._context, -1)
        return torch.frombuffer(
            ctypes.cast(found, ctypes.POINTER(ctypes.c_float * self._rows)).contents, dtype=torch.float
        )


@contextmanager
def of_llama_cpp(model: LanguageModel, dtype: str) -> Iterator[Llama]:
    """A model as llama.cpp runs it, its matrices rounded to what `dtype` stands for: "int8" for blocks of q8_0."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "model.gguf")
        gguf.write(model, file)
        if dtype in ROUNDED:
            file = _rounded(file, ROUNDED[dtype])
        theirs = Llama(file)
        try:
            yield theirs
        finally:
            theirs.close()


def _rounded(file: Path, kind: int) -> Path:
    lib = _library()
    made = file.with_name("rounded.gguf")
    options = lib.llama_model_quantize_default_params()
    options.ftype, options.nthread = kind, torch.get_num_threads()
    if code := lib.llama_model_quantize(bytes(file), bytes(made), ctypes.byref(options)):
        raise RuntimeError(f"llama_model_quantize returns {code}.")
    file.unlink()
    return made


def _library() -> Any:
    # It prints all that it does unless told otherwise, and warnings as errors.
    logging.getLogger(PACKAGE).setLevel(logging.CRITICAL)
    return importlib.import_module("llama_cpp")
