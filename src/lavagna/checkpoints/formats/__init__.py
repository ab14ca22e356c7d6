"""The foreign formats that are read. A new one is a file beside this one and a line here."""

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any, cast

from lavagna.checkpoints.format import Format

# The first that recognizes a checkpoint has it.
FORMATS: dict[str, str | type[Format]] = {
    "mamba": "mamba:Mamba",
    "falcon_mamba": "mamba:FalconMamba",
    "mamba2": "mamba2:Mamba2",
    "xlstm": "xlstm:XLSTM",
    "xlstm_large": "xlstm:NativeXLSTM",
    "qwen3_next": "qwen3_next:Qwen3Next",
    "qwen3_5": "qwen3_5:Qwen35",
    "qwen3_5_multimodal": "qwen3_5:Qwen35WithPictures",
    "olmo_hybrid": "olmo_hybrid:OlmoHybrid",
    "olmo_hybrid_resaved": "olmo_hybrid:OlmoHybridResaved",
    "olmo_hybrid_in_memory": "olmo_hybrid:OlmoHybridInMemory",
    "recurrent_gemma": "recurrent_gemma:RecurrentGemma",
    "state_spaces": "state_spaces:StateSpaces",
    "torchscale_retnet": "torchscale:Torchscale",
    "fairseq_retnet": "torchscale:Fairseq",
    "retnet": "retnet:RetNet",
    "retnet_packed": "retnet:PackedRetNet",
    "fla_rwkv7": "fla_rwkv7:RWKV7",
    "fla_rwkv7_joined": "fla_rwkv7:JoinedRWKV7",
    "gla": "gla:GLA",
    "gla_packed": "gla:PackedGLA",
    "delta_net": "delta_net:DeltaNet",
    "delta_net_packed": "delta_net:PackedDeltaNet",
    "gated_deltanet": "gated_deltanet:GatedDeltaNet",
    "kda": "kda:KDA",
    "rwkv": "rwkv4:Rwkv",
    "rwkv4": "rwkv4:Rwkv4",
    "rwkv5": "rwkv5:Rwkv5",
    "rwkv6": "rwkv6:Rwkv6",
    "rwkv7": "rwkv7:Rwkv7",
    "rwkv7_rosa": "rwkv7:Rwkv7Rosa",
}


def names() -> list[str]:
    """The name of every format."""
    return list(FORMATS)


def register(format: type[Format]) -> type[Format]:
    """Make a format of one's own known by its `name`; a class decorator.

    Raises ValueError where the name is taken by another class.
    """
    if FORMATS.get(format.name, format) is not format:
        raise ValueError(f"checkpoints: the name {format.name!r} is taken. Give {format.__name__} another `name`.")
    FORMATS[format.name] = format
    return format


def of_name(name: str) -> Format:
    """The format of a name. Raises ValueError on an unknown name."""
    if name not in FORMATS:
        raise ValueError(f"checkpoints: there is no format {name!r}. Known are {', '.join(FORMATS)}.")
    entry = FORMATS[name]
    if isinstance(entry, str):
        module, found = entry.split(":")
        entry = cast(type[Format], getattr(import_module(f"lavagna.checkpoints.formats.{module}"), found))
    return entry()


def recognized(config: Mapping[str, Any], names: Collection[str]) -> Format | None:
    """The format of a checkpoint by its contents, None where none knows it."""
    return next((each for each in map(of_name, FORMATS) if each.recognizes(config, names)), None)
