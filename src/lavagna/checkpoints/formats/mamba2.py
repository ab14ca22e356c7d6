"""Mamba-2 as Hugging Face's transformers write it."""

from collections.abc import Collection, Mapping
from typing import Any

from lavagna.checkpoints.format import Config, Format, built, refuse_other, vocabulary
from lavagna.checkpoints.formats.mamba import EMBEDDING, HEAD, NORM, conv_rules, frame, shared_config, shared_options
from lavagna.checkpoints.rules import Rule, parted, reshape, same
from lavagna.layers import registry
from lavagna.layers.mamba2 import Mamba2 as Layer
from lavagna.models import ModelConfig


class Mamba2(Format):
    """`Mamba2ForCausalLM`: `in_proj` holds the gate, then x, B and C, then the step sizes."""

    name = "mamba2"
    tied = (EMBEDDING, HEAD)

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return config.get("model_type") == self.name and NORM in names

    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        refuse_other(config, "hidden_act", "silu", "swish")
        options = shared_options(config) | {
            "heads": config["num_heads"],
            "head_dim": config["head_dim"],
            "groups": config["n_groups"],
            "dt_limit": [_number(limit) for limit in config.get("time_step_limit", (0.0, "inf"))],
            "norm_eps": config.get("layer_norm_epsilon", 1e-5),
        }
        described = ModelConfig(
            layer="mamba2",
            d_model=config["hidden_size"],
            depth=config["num_hidden_layers"],
            tie_embeddings=config.get("tie_word_embeddings", False),
            norm_eps=config.get("layer_norm_epsilon", 1e-5),
            options=options,
            **vocabulary(config["vocab_size"], shapes[EMBEDDING][0]),
        )
        width, said = built(described, Layer).sizes[0], described.d_model * options["expand"]
        if width != said:
            raise ValueError(f"Its num_heads * head_dim is {width}, but its hidden_size * expand is {said}.")
        return described

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        return [*frame(model_config), *mamba2_rules(model_config)]

    def held(self) -> tuple[str, ...]:
        return ("mamba2",)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        options, layer = registry.options("mamba2") | model_config.layer_options("mamba2"), built(model_config, Layer)
        expand, rest = divmod(layer.sizes[0], model_config.d_model)
        if rest:
            raise ValueError(f"Its heads are d_model times an int wide, but this model's are {layer.sizes[0]}.")
        return {
            "architectures": ["Mamba2ForCausalLM"],
            "model_type": self.name,
            **shared_config(model_config, options),
            "expand": expand,
            "num_heads": layer.values.count,
            "head_dim": layer.values.size,
            "state_size": layer.keys.size,
            "n_groups": layer.keys.count,
            "time_step_limit": list(options["dt_limit"]),
        }


def _number(value: Any) -> float:
    # JSON has no infinity: transformers writes {"__float__": "Infinity"}.
    return float(value["__float__"] if isinstance(value, Mapping) else value)


def mamba2_rules(model_config: ModelConfig) -> list[Rule]:
    """The mixers of a Mamba-2."""
    options, layer = registry.options("mamba2") | model_config.layer_options("mamba2"), built(model_config, Layer)
    sizes = [layer.sizes[0], sum(layer.sizes), layer.values.count]
    flat = [reshape(tuple(layer.D.shape), (layer.D.numel(),))] if layer.D.ndim == 2 else []
    rules = []
    for index in range(model_config.depth):
        ours, theirs = f"blocks.{index}.mixer", f"backbone.layers.{index}.mixer"
        for kind in ("weight", "bias") if options["bias"] else ("weight",):
            parts = [f"{ours}.{part}.{kind}" for part in ("gate", "xbc", "step")]
            rules += [
                parted(parts, f"{theirs}.in_proj.{kind}", sizes),
                same(f"{ours}.out.{kind}", f"{theirs}.out_proj.{kind}"),
            ]
        rules += [
            *conv_rules(ours, theirs, bias=options["conv_bias"]),
            same(f"{ours}.norm.weight", f"{theirs}.norm.weight"),
            same(f"{ours}.dt_bias", f"{theirs}.dt_bias"),
            same(f"{ours}.A_log", f"{theirs}.A_log"),
            same(f"{ours}.D", f"{theirs}.D", *flat),
        ]
    return rules
