"""Gated DeltaNet as flash-linear-attention writes it."""

from collections.abc import Mapping
from typing import Any

from lavagna.checkpoints.format import Config, refuse_other
from lavagna.checkpoints.formats.delta_net import negative
from lavagna.checkpoints.formats.fla import FLA, qkv_rules, renamed
from lavagna.checkpoints.rules import Rule


def head_options(config: Config, *, head_dim: int, expand: float) -> dict[str, Any]:
    """The options that say how a layer with value heads of its own is laid out; the numbers are for absent keys."""
    return {
        "heads": config["num_heads"],
        "head_dim": config.get("head_dim", head_dim),
        "value_heads": config.get("num_v_heads") or config["num_heads"],
        "expand": config.get("expand_v", expand),
        "max_beta": 2.0 if config.get("allow_neg_eigval", False) else 1.0,
        "conv_size": config.get("conv_size", 4) if config.get("use_short_conv", True) else 0,
        "norm_eps": config.get("norm_eps", 1e-6),
    }


def head_config(layer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `head_options`."""
    return {
        "num_heads": layer.keys.count,
        "head_dim": layer.keys.size,
        "num_v_heads": layer.values.count,
        "expand_v": layer.values.size / layer.keys.size,
        "allow_neg_eigval": negative(options),
        "use_short_conv": bool(options["conv_size"]),
        "conv_size": options["conv_size"] or 4,
    }


class GatedDeltaNet(FLA):
    """`GatedDeltaNetForCausalLM`."""

    name = "gated_deltanet"
    layer = "gated_delta_net"

    def mixer_options(self, config: Config) -> dict[str, Any]:
        refuse_other(config, "output_gate_activation", "swish", "silu", "sigmoid")
        gate = {"gate": config.get("use_gate", True)}
        if config.get("output_gate_activation") == "sigmoid":
            gate["activation"] = "sigmoid"
        return head_options(config, head_dim=256, expand=2.0) | gate

    def mixer_config(self, layer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        if options["activation"] not in ("silu", "sigmoid"):
            raise ValueError(f"the gate has {options['activation']}, but the format has silu and sigmoid.")
        return head_config(layer, options) | {
            "architectures": ["GatedDeltaNetForCausalLM"],
            "use_gate": options["gate"],
            "output_gate_activation": {"silu": "swish"}.get(options["activation"], options["activation"]),
        }

    def mixer_rules(self, ours: str, theirs: str, layer: Any, config: Config) -> list[Rule]:
        names = {
            "step.weight": "a_proj.weight",
            "beta.weight": "b_proj.weight",
            "A_log": "A_log",
            "dt_bias": "dt_bias",
            "norm.weight": "o_norm.weight",
            "out.weight": "o_proj.weight",
        }
        if layer.gate is not None:
            names["gate.weight"] = "g_proj.weight"
        conv = layer.qkv.conv is not None
        return [*qkv_rules(ours, theirs, layer.qkv.sizes, conv=conv), *renamed(ours, theirs, names)]
