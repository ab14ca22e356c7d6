"""RetNet as flash-linear-attention writes it."""

from collections.abc import Mapping
from typing import Any

from lavagna.checkpoints.format import Config, refuse_other
from lavagna.checkpoints.formats.fla import FLA, renamed, side_by_side
from lavagna.checkpoints.rules import Rule

# Options of the layer of which theirs has this.
PLAIN = {"rotation": "halves", "decay": "powers", "rescale": "scale", "activation": "silu"}


class RetNet(FLA):
    """`RetNetForCausalLM`: halves turn against each other, the norm has weights, nothing is rescaled but by sqrt(k).

    What its config says of short convolutions the package leaves out of the model, and so does this.
    """

    name = "retnet"
    layer = "retention"

    def mixer_options(self, config: Config) -> dict[str, Any]:
        refuse_other(config, "feature_map", None)
        width, heads = config["hidden_size"], config["num_heads"]
        keys, values = int(width * config.get("expand_k", 1.0)), int(width * config.get("expand_v", 2.0))
        if keys % heads or values % heads:
            raise ValueError(f"num_heads is {heads}, which does not divide its widths {keys} and {values}.")
        return {
            "heads": heads,
            "head_dim": keys // heads,
            "kv_heads": config.get("num_kv_heads") or heads,
            "expand": values / keys,
            "rotation": "halves",
            "gate": config.get("use_output_gate", True),
            "affine": config.get("elementwise_affine", True),
            "norm_eps": config.get("norm_eps", 1e-6),
        }

    def mixer_config(self, layer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        for option, wanted in PLAIN.items():
            if options[option] != wanted:
                raise ValueError(f"retnet has {option}={wanted!r}, but the model {options[option]!r}.")
        return {
            "architectures": ["RetNetForCausalLM"],
            "num_heads": layer.keys.count,
            "num_kv_heads": layer.written.count,
            "expand_k": layer.keys.width / layer.d_model,
            "expand_v": layer.values.width / layer.d_model,
            "feature_map": None,
            "use_output_gate": options["gate"],
            "elementwise_affine": options["affine"],
            "fuse_norm": True,
        }

    def mixer_rules(self, ours: str, theirs: str, layer: Any, config: Config) -> list[Rule]:
        gated = len(layer.sizes) == 4
        parts = [f"{part}_proj" for part in ("qkvg" if gated else "qkv")]
        names = {"out.weight": "o_proj.weight"}
        if layer.norm.weight is not None:
            fused = gated and config.get("fuse_norm", True)
            names["norm.weight"] = "g_norm_swish_gate.weight" if fused else "g_norm.weight"
        return [side_by_side(f"{ours}.qkvg", theirs, parts, layer.sizes), *renamed(ours, theirs, names)]


class PackedRetNet(RetNet):
    """The same from before 2025."""

    name = "retnet_packed"
    packed = True
