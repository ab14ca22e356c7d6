"""Qwen3-Next as Hugging Face's transformers write it: gated delta layers, and gated attention every few of them."""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from lavagna.checkpoints.format import Config, Format, around, built, frame_config, refuse_other, vocabulary
from lavagna.checkpoints.formats.decoder import (
    ATTENTION,
    DELTA,
    EMBEDDING,
    HEAD,
    KINDS,
    attention_config,
    by_layer,
    delta_config,
    frame,
    layer_pattern,
    mixer_rules,
    mlp_rules,
    rotary_options,
)
from lavagna.checkpoints.rules import Rule, parted, reorder, same, squeeze
from lavagna.layers.gated_delta_net import GatedDeltaNet
from lavagna.layers.softmax_attention import SoftmaxAttention
from lavagna.models import ModelConfig

# What their configuration has where a file is silent.
DEFAULTS = {
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "tie_word_embeddings": False,
}
# The share of a head's channels that turn.
TURNED = 0.25


class Qwen3Next(Format):
    """`Qwen3NextForCausalLM` whose every feed-forward net is dense.

    Norms have factors 1 + weight, save the gated one. `in_proj_qkvz` and `in_proj_ba` hold one group of rows a key
    head: its query, its key, its value heads and their gates; its value heads' betas and step sizes.
    """

    name = "qwen3_next"
    tied = (EMBEDDING, HEAD)
    root = "model"
    architecture = "Qwen3NextForCausalLM"

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return config.get("model_type") == self.name and EMBEDDING in names

    def text(self, config: Config) -> dict[str, Any]:
        """The part of a configuration that describes the language model, with nothing left out."""
        return DEFAULTS | {key: value for key, value in config.items() if value is not None}

    def experts(self, text: Mapping[str, Any]) -> list[int]:
        """The layers whose feed-forward net is a mixture of experts."""
        dense, every = text.get("mlp_only_layers") or (), text.get("decoder_sparse_step", 1)
        layers = range(text["num_hidden_layers"] if text.get("num_experts", 512) else 0)
        return [index for index in layers if index not in dense and (index + 1) % every == 0]

    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        text = self.text(config)
        if experts := self.experts(text):
            raise ValueError(f"It is a mixture of experts (layer {experts[0]}), of which lavagna has none.")
        refuse_other(text, "hidden_act", "silu", "swish")
        pattern, keys = layer_pattern(text), text["linear_key_head_dim"]
        delta = {
            "heads": text["linear_num_key_heads"],
            "head_dim": keys,
            "value_heads": text["linear_num_value_heads"],
            "expand": text["linear_value_head_dim"] / keys,
            "conv_size": text["linear_conv_kernel_dim"],
            "norm_eps": text["rms_norm_eps"],
        }
        attention = {
            "heads": text["num_attention_heads"],
            "head_dim": text["head_dim"],
            "kv_heads": text["num_key_value_heads"],
            "qk_norm": "zero_centered_head",
            "norm_eps": text["rms_norm_eps"],
            "gate": True,
            "bias": text["attention_bias"],
            "out_bias": text["attention_bias"],
        } | rotary_options(text, text["head_dim"], fraction=TURNED)
        return ModelConfig(
            layer=pattern,
            d_model=text["hidden_size"],
            depth=text["num_hidden_layers"],
            options=by_layer(pattern, **{DELTA: delta, ATTENTION: attention}),
            block={"norm": "zero_centered_rms", "mlp": "swiglu", "mlp_width": text["intermediate_size"]},
            norm_eps=text["rms_norm_eps"],
            tie_embeddings=text["tie_word_embeddings"],
            **vocabulary(text["vocab_size"], shapes[f"{self.root}.embed_tokens.weight"][0]),
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        rules = frame(model_config, self.root)
        for index, name in enumerate(model_config.layers):
            ours, theirs = f"blocks.{index}", f"{self.root}.layers.{index}"
            rules += mixer_rules(model_config, name, ours, theirs, self.delta_rules)
            rules += mlp_rules(f"{ours}.mlp", f"{theirs}.mlp", around(model_config, name).mlp_width)
            rules += [
                same(f"{ours}.mixer_norm.weight", f"{theirs}.input_layernorm.weight"),
                same(f"{ours}.mlp_norm.weight", f"{theirs}.post_attention_layernorm.weight"),
            ]
        return rules

    def delta_rules(self, ours: str, theirs: str, layer: GatedDeltaNet) -> list[Rule]:
        """A gated delta layer."""
        return [
            *self.projection_rules(ours, theirs, layer),
            same(f"{ours}.qkv.conv.weight", f"{theirs}.conv1d.weight", squeeze(1)),
            same(f"{ours}.norm.weight", f"{theirs}.norm.weight"),
            same(f"{ours}.out.weight", f"{theirs}.out_proj.weight"),
            *(same(f"{ours}.{name}", f"{theirs}.{name}") for name in ("A_log", "dt_bias")),
        ]

    def projection_rules(self, ours: str, theirs: str, layer: GatedDeltaNet) -> list[Rule]:
        """The projections of a gated delta layer, which lie in groups, one a key head."""
        groups, size = layer.keys
        each, width = layer.values.count // groups, layer.values.count // groups * layer.values.size
        qkvz = (f"{ours}.qkv.linear.weight", f"{ours}.gate.weight")
        ba = (f"{ours}.beta.weight", f"{ours}.step.weight")
        rows, heads = sum(layer.qkv.sizes), layer.values.count
        return [
            Rule(
                ours=names,
                theirs=(f"{theirs}.{packed}.weight",),
                turns=(reorder(_apart(groups, parts)), *parted(names, "", sizes).turns),
            )
            for names, packed, parts, sizes in (
                (qkvz, "in_proj_qkvz", [size, size, width, width], [rows, layer.qkv.sizes[2]]),
                (ba, "in_proj_ba", [each, each], [heads, heads]),
            )
        ]

    def held(self) -> tuple[str, ...]:
        return tuple(KINDS.values())

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        names = {ours: theirs for theirs, ours in KINDS.items()}
        made = {
            "architectures": [self.architecture],
            "model_type": self.name,
            **frame_config(model_config),
            "intermediate_size": around(model_config, model_config.layers[0]).mlp_width,
            "layer_types": [names[layer] for layer in model_config.layers],
            "num_experts": 0,
            "hidden_act": "silu",
            "rms_norm_eps": model_config.norm_eps,
        }
        if DELTA in model_config.layers:
            made |= delta_config(built(model_config, GatedDeltaNet))
        if ATTENTION in model_config.layers:
            return made | attention_config(built(model_config, SoftmaxAttention))
        # Their configuration wants these all the same.
        return made | {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": model_config.d_model}

    def unused(self, names: Collection[str]) -> set[str]:
        """Heads that predict further tokens at once, and angles that older versions wrote down."""
        return {name for name in names if name.startswith("mtp.") or name.endswith("rotary_emb.inv_freq")}


def _apart(groups: int, parts: list[int]) -> torch.Tensor:
    """The order of rows that takes groups of `parts` apart: all first parts, then all second ones, and so on."""
    place = torch.arange(groups * sum(parts), device="cpu").reshape(groups, -1)
    return torch.cat([part.flatten() for part in place.split(parts, 1)])
