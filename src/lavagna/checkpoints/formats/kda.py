"""Kimi Delta Attention as flash-linear-attention writes it."""

from collections.abc import Mapping
from typing import Any

from lavagna.checkpoints.format import Config
from lavagna.checkpoints.formats.fla import FLA, qkv_rules, renamed
from lavagna.checkpoints.formats.gated_deltanet import head_config, head_options
from lavagna.checkpoints.rules import Rule

NAMES = {
    "step.down.weight": "f_proj.0.weight",
    "step.up.weight": "f_proj.1.weight",
    "beta.weight": "b_proj.weight",
    "A_log": "A_log",
    "dt_bias": "dt_bias",
    "gate.down.weight": "g_proj.0.weight",
    "gate.up.weight": "g_proj.1.weight",
    "gate.up.bias": "g_proj.1.bias",
    "norm.weight": "o_norm.weight",
    "out.weight": "o_proj.weight",
}


class KDA(FLA):
    """`KDAForCausalLM`. Its `safe_gate` chooses kernels; what bounds the gate is `lower_bound`."""

    name = "kda"
    layer = "kda"

    def mixer_options(self, config: Config) -> dict[str, Any]:
        return head_options(config, head_dim=128, expand=1.0) | {"lower_bound": config.get("lower_bound")}

    def mixer_config(self, layer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        if options["gate_rank"] not in (None, layer.values.size) or not options["gate_bias"]:
            raise ValueError("the format has gates of the rank of a value head, and a bias.")
        bound = options["lower_bound"]
        # Kernels need both in a range of their own.
        safe = {"safe_gate": bound is not None and bound >= -5, "lower_bound": bound}
        return head_config(layer, options) | {"architectures": ["KDAForCausalLM"]} | safe

    def mixer_rules(self, ours: str, theirs: str, layer: Any, config: Config) -> list[Rule]:
        conv = layer.qkv.conv is not None
        return [*qkv_rules(ours, theirs, layer.qkv.sizes, conv=conv), *renamed(ours, theirs, NAMES)]
