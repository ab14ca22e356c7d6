"""Gated linear attention as flash-linear-attention writes it."""

from collections.abc import Mapping
from typing import Any

from lavagna.checkpoints.format import Config, refuse_other
from lavagna.checkpoints.formats.fla import FLA, SWISH, qkv_rules, renamed, theirs_of
from lavagna.checkpoints.rules import Rule

FEATURE_MAPS = {None: "identity", "relu": "relu", "sigmoid": "sigmoid", "swish": "silu", "silu": "silu"}


class GLA(FLA):
    """`GLAForCausalLM`. The norm of the reads is called after the gate where one kernel does both."""

    name = "gla"
    layer = "gla"

    def mixer_options(self, config: Config) -> dict[str, Any]:
        refuse_other(config, "feature_map", *FEATURE_MAPS)
        return {
            "heads": config["num_heads"],
            "kv_heads": config.get("num_kv_heads") or config["num_heads"],
            "expand_k": config.get("expand_k", 0.5),
            "expand": config.get("expand_v", 1.0),
            "feature_map": FEATURE_MAPS[config.get("feature_map")],
            "lower_bound": config.get("clamp_min"),
            "gate": config.get("use_output_gate", True),
            "affine": config.get("elementwise_affine", True),
            "conv_size": config.get("conv_size", 4) if config.get("use_short_conv", False) else 0,
            "norm_eps": config.get("norm_eps", 1e-6),
        }

    def mixer_config(self, layer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        plain = {"gate_rank": 16, "temperature": 16.0, "activation": "silu"}
        for option, wanted in plain.items():
            if options[option] != wanted:
                raise ValueError(f"gla has {option}={options[option]!r}, but the format {wanted!r} always.")
        return {
            "architectures": ["GLAForCausalLM"],
            "num_heads": layer.values.count,
            "num_kv_heads": layer.keys.count,
            "expand_k": options["expand_k"],
            "expand_v": options["expand"],
            "feature_map": theirs_of("feature_map", FEATURE_MAPS, options["feature_map"]),
            "clamp_min": options["lower_bound"],
            "use_output_gate": options["gate"],
            "elementwise_affine": options["affine"],
            "use_short_conv": bool(options["conv_size"]),
            "conv_size": options["conv_size"] or 4,
            "fuse_norm": True,
        }

    def mixer_rules(self, ours: str, theirs: str, layer: Any, config: Config) -> list[Rule]:
        fused = layer.gate is not None and config.get("fuse_norm", True) and config.get("hidden_act", "swish") in SWISH
        names = {
            "decay.down.weight": "gk_proj.0.weight",
            "decay.up.weight": "gk_proj.1.weight",
            "decay.up.bias": "gk_proj.1.bias",
            "out.weight": "o_proj.weight",
        }
        if layer.norm.weight is not None:
            names["norm.weight"] = "g_norm_swish_gate.weight" if fused else "g_norm.weight"
        if layer.gate is not None:
            names["gate.weight"] = "g_proj.weight"
        conv = layer.qkv.conv is not None
        return [*qkv_rules(ours, theirs, layer.qkv.sizes, conv=conv), *renamed(ours, theirs, names)]


class PackedGLA(GLA):
    """The same from before 2025."""

    name = "gla_packed"
    packed = True
