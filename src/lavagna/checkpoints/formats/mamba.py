"""Mamba and Falcon Mamba as Hugging Face's transformers write them."""

from collections.abc import Collection, Mapping
from typing import Any

from lavagna.checkpoints.format import Config, Format, frame_config, refuse_other, vocabulary
from lavagna.checkpoints.rules import Rule, parted, same, squeeze
from lavagna.layers import registry
from lavagna.models import ModelConfig

EMBEDDING, HEAD = "backbone.embeddings.weight", "lm_head.weight"
NORM = "backbone.norm_f.weight"


class Mamba(Format):
    """`MambaForCausalLM`: `in_proj` holds x and the gate, `x_proj` s, B and C, and the step sizes' bias is a bias."""

    name = "mamba"
    tied = (EMBEDDING, HEAD)

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return config.get("model_type") == self.name and NORM in names

    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        width, rank = config["hidden_size"], config.get("time_step_rank", "auto")
        refuse_other(config, "hidden_act", "silu", "swish")
        options = shared_options(config) | {"dt_rank": -(-width // 16) if rank == "auto" else rank}
        return ModelConfig(
            layer="mamba",
            d_model=width,
            depth=config["num_hidden_layers"],
            tie_embeddings=config.get("tie_word_embeddings", True),
            norm_eps=config.get("layer_norm_epsilon", 1e-5),
            options=options | self.more_options(config),
            **vocabulary(config["vocab_size"], shapes[EMBEDDING][0]),
        )

    def more_options(self, config: Config) -> dict[str, Any]:
        """What sets this kind of Mamba apart."""
        return {}

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        return [*frame(model_config), *mamba_rules(model_config)]

    def held(self) -> tuple[str, ...]:
        return ("mamba",)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        options = registry.options("mamba") | model_config.layer_options("mamba")
        width = model_config.d_model
        rank = options["dt_rank"]
        return {
            "architectures": [type(self).__name__ + "ForCausalLM"],
            "model_type": self.name,
            **shared_config(model_config, options),
            "intermediate_size": int(width * options["expand"]),
            "state_size": options["d_state"],
            "time_step_rank": -(-width // 16) if rank is None else rank,
        }


class FalconMamba(Mamba):
    """`FalconMambaForCausalLM`: a Mamba that normalizes s, B and C, without weights."""

    name = "falcon_mamba"

    def more_options(self, config: Config) -> dict[str, Any]:
        return {"norm": True, "norm_eps": config.get("mixer_rms_eps", 1e-6)}

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        options = registry.options("mamba") | model_config.layer_options("mamba")
        return super().foreign_config(model_config) | {"mixer_rms_eps": options["norm_eps"]}


def shared_options(config: Config) -> dict[str, Any]:
    """The options that configurations of Mamba and Mamba-2 say in the same words."""
    return {
        "d_state": config["state_size"],
        "expand": config.get("expand", 2),
        "conv_size": config.get("conv_kernel", 4),
        "bias": config.get("use_bias", False),
        "conv_bias": config.get("use_conv_bias", True),
    }


def shared_config(model_config: ModelConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """What both write in the same words of a model and its layers' options."""
    return {
        **frame_config(model_config),
        "layer_norm_epsilon": model_config.norm_eps,
        "expand": options["expand"],
        "conv_kernel": options["conv_size"],
        "use_bias": options["bias"],
        "use_conv_bias": options["conv_bias"],
        "hidden_act": "silu",
    }


def frame(model_config: ModelConfig, embedding: str = EMBEDDING) -> list[Rule]:
    """What stands around the mixers of every kind of Mamba."""
    layer_norm = model_config.block_choices(model_config.layers[0]).get("norm") == "layer"
    norms = {"norm": NORM.removesuffix(".weight")}
    norms |= {f"blocks.{n}.mixer_norm": f"backbone.layers.{n}.norm" for n in range(model_config.depth)}
    kinds = ("weight", "bias") if layer_norm else ("weight",)
    rules = [same("embedding.weight", embedding)]
    rules += [same(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in norms.items() for kind in kinds]
    return rules if model_config.tie_embeddings else [*rules, same("head.weight", HEAD)]


def mamba_rules(model_config: ModelConfig) -> list[Rule]:
    """The mixers of a Mamba."""
    options = registry.options("mamba") | model_config.layer_options("mamba")
    channels = int(model_config.d_model * options["expand"])
    rules = []
    for index in range(model_config.depth):
        ours, theirs = f"blocks.{index}.mixer", f"backbone.layers.{index}.mixer"
        for kind in ("weight", "bias") if options["bias"] else ("weight",):
            pair = [f"{ours}.x.{kind}", f"{ours}.gate.{kind}"]
            rules += [
                parted(pair, f"{theirs}.in_proj.{kind}", [channels, channels]),
                same(f"{ours}.out.{kind}", f"{theirs}.out_proj.{kind}"),
            ]
        rules += [
            *conv_rules(ours, theirs, bias=options["conv_bias"]),
            same(f"{ours}.sbc.weight", f"{theirs}.x_proj.weight"),
            same(f"{ours}.step.weight", f"{theirs}.dt_proj.weight"),
            same(f"{ours}.dt_bias", f"{theirs}.dt_proj.bias"),
            same(f"{ours}.A_log", f"{theirs}.A_log"),
            same(f"{ours}.D", f"{theirs}.D"),
        ]
    return rules


def conv_rules(ours: str, theirs: str, *, bias: bool) -> list[Rule]:
    """A short convolution, whose filters torch's `Conv1d` gives an axis of one for the channels that each reads."""
    rules = [same(f"{ours}.conv.weight", f"{theirs}.conv1d.weight", squeeze(1))]
    return [*rules, same(f"{ours}.conv.bias", f"{theirs}.conv1d.bias")] if bias else rules
