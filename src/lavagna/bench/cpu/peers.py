"""Other people's implementations of the same models, with the same weights, where they are installed."""

import contextlib
import importlib
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lavagna.bench.cpu.machine import installed
from lavagna.checkpoints import convert, save
from lavagna.extras import quiet
from lavagna.models import LanguageModel, ModelConfig


class Twin(NamedTuple):
    """A configuration of ours that transformers has too: its format, and in what it is not a layer's default."""

    format: str
    layer: str | tuple[str, ...]
    more: Mapping[str, Any]


# By the layer that a result is listed under. Qwen3-Next attends in every fourth layer, as its code demands.
TWINS = {
    "mamba": Twin("mamba", "mamba", {}),
    "mamba2": Twin("mamba2", "mamba2", {}),
    "rwkv4": Twin("rwkv", "rwkv4", {}),
    "gated_delta_net": Twin(
        "qwen3_next",
        ("gated_delta_net", "gated_delta_net", "gated_delta_net", "softmax_attention"),
        {
            "norm_eps": 1e-6,
            "block": {"norm": "zero_centered_rms"},
            "options": {
                "gated_delta_net": {"norm_eps": 1e-6},
                "softmax_attention": {
                    "gate": True,
                    "qk_norm": "zero_centered_head",
                    "norm_eps": 1e-6,
                    "rotary_fraction": 0.25,
                },
            },
        },
    ),
    "mlstm": Twin(
        "xlstm",
        "mlstm",
        {"norm_eps": 1e-6, "tie_embeddings": False, "logit_cap": 30.0, "options": {"block": "7b"}},
    ),
}
# Versions that the package rwkv reads, and whether it is told so by RWKV_V7_ON.
RWKV = {"rwkv4": "0", "rwkv7": "1"}


def configuration(layer: str, depth: int, *, d_model: int, vocab_size: int, twin: bool) -> ModelConfig:
    """A model of a layer, as it is by default or as transformers has it."""
    sizes: dict[str, Any] = {"d_model": d_model, "depth": depth, "vocab_size": vocab_size}
    if not twin:
        return ModelConfig(layer=layer, **sizes)
    return ModelConfig(layer=TWINS[layer].layer, **sizes, **TWINS[layer].more)


def stirred(config: ModelConfig) -> LanguageModel:
    """A new model in which nothing is zero or one, as layers start with, and so nothing can hide."""
    torch.manual_seed(0)
    model = LanguageModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return model


def missing(package: str) -> str | None:
    """In a line, why a package can't be measured, or None."""
    return None if installed(package) else f"{package} is not installed"


@contextmanager
def of_transformers(model: LanguageModel, layer: str, **changed: Any) -> Iterator[Any]:
    """The model as transformers runs it; `changed` are values of its own configuration."""
    # Read before anything else is, so that nothing is asked of a network.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = _imported("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder, quiet():
        save(model, Path(folder, "ours"))
        convert(Path(folder, "ours"), Path(folder, "theirs"), to=TWINS[layer].format)
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            Path(folder, "theirs"), dtype=next(model.parameters()).dtype, **changed
        )
    yield theirs.eval()


@contextmanager
def of_rwkv(model: LanguageModel, layer: str, strategy: str) -> Iterator[Any]:
    """The model as the package rwkv runs it, by its `strategy`: "cpu fp32" or "cpu bf16"."""
    os.environ |= {"RWKV_V7_ON": RWKV[layer], "RWKV_JIT_ON": "1", "RWKV_CUDA_ON": "0"}
    # It prints as it loads, and decides on the version when it is imported.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        save(model, Path(folder, "ours"))
        convert(Path(folder, "ours"), Path(folder, "theirs.pth"), to=layer)
        package = importlib.reload(_imported("rwkv.model"))
        theirs = package.RWKV(str(Path(folder, "theirs")), strategy)
    yield theirs


def logits(model: Any, ids: Tensor) -> Tensor:
    """What a model of transformers says of each id of a text."""
    return model(ids, use_cache=False).logits


def failure(call: Callable[[], object]) -> str | None:
    """In a line, what a peer's call raises, or None: one that fails does not keep the others from being measured."""
    try:
        call()
    except Exception as error:
        return f"fails: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


def _imported(name: str) -> ModuleType:
    return importlib.import_module(name)
