"""DeltaNet as flash-linear-attention writes it."""

from collections.abc import Mapping
from typing import Any

from lavagna.checkpoints.format import Config, refuse_other
from lavagna.checkpoints.formats.fla import FLA, qkv_rules, renamed, theirs_of
from lavagna.checkpoints.rules import Rule

ACTIVATIONS = {"silu": "silu", "relu": "relu", "elu": "elu_plus_one", "identity": "identity"}


class DeltaNet(FLA):
    """`DeltaNetForCausalLM`."""

    name = "delta_net"
    layer = "delta_net"

    def mixer_options(self, config: Config) -> dict[str, Any]:
        refuse_other(config, "use_beta", True)
        refuse_other(config, "qk_activation", *ACTIVATIONS)
        width, heads = config["hidden_size"], config["num_heads"]
        keys, values = (round(width * config.get(key, 1.0)) for key in ("expand_k", "expand_v"))
        if keys % heads or values % heads:
            raise ValueError(f"num_heads is {heads}, which does not divide keys of {keys} or values of {values}.")
        return {
            "heads": heads,
            "head_dim": keys // heads,
            "expand": values / keys,
            "qk_activation": ACTIVATIONS[config.get("qk_activation", "silu")],
            "qk_norm": config.get("qk_norm", "l2"),
            "max_beta": 2.0 if config.get("allow_neg_eigval", False) else 1.0,
            "gate": config.get("use_gate", False),
            "conv_size": config.get("conv_size", 4) if config.get("use_short_conv", True) else 0,
            "norm_eps": config.get("norm_eps", 1e-6),
        }

    def mixer_config(self, layer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        width = layer.d_model
        return {
            "architectures": ["DeltaNetForCausalLM"],
            "num_heads": layer.keys.count,
            "expand_k": layer.keys.width / width,
            "expand_v": layer.values.width / width,
            "qk_activation": theirs_of("qk_activation", ACTIVATIONS, options["qk_activation"]),
            "qk_norm": options["qk_norm"],
            "allow_neg_eigval": negative(options),
            "use_gate": options["gate"],
            "use_short_conv": bool(options["conv_size"]),
            "conv_size": options["conv_size"] or 4,
            "use_beta": True,
        }

    def mixer_rules(self, ours: str, theirs: str, layer: Any, config: Config) -> list[Rule]:
        names = {"beta.weight": "b_proj.weight", "norm.weight": "o_norm.weight", "out.weight": "o_proj.weight"}
        if layer.gate is not None:
            names["gate.weight"] = "g_proj.weight"
        conv = layer.qkv.conv is not None
        return [*qkv_rules(ours, theirs, layer.qkv.sizes, conv=conv), *renamed(ours, theirs, names)]


class PackedDeltaNet(DeltaNet):
    """The same from before 2025."""

    name = "delta_net_packed"
    packed = True


def negative(options: Mapping[str, Any]) -> bool:
    """Whether betas go up to 2. Raises ValueError on another end than that and 1, and on biases of convolutions."""
    if options["max_beta"] not in (1, 2):
        raise ValueError(f"max_beta is {options['max_beta']}, but the format has 1 and 2.")
    if options["conv_bias"]:
        raise ValueError("the format has no biases of convolutions.")
    return options["max_beta"] == 2
