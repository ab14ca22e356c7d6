"""RecurrentGemma as Hugging Face's transformers write it: recurrent blocks, and attention to a window among them."""

from collections.abc import Collection, Mapping
from typing import Any

import torch

from lavagna.checkpoints.format import Config, Format, around, built, frame_config, refuse_other, vocabulary
from lavagna.checkpoints.formats.decoder import (
    ATTENTION,
    EMBEDDING,
    HEAD,
    attention_rules,
    attention_sizes,
    both_kinds,
    by_layer,
    frame,
    mlp_rules,
    repeating,
    rotary_options,
)
from lavagna.checkpoints.rules import Rule, reshape, same, squeeze, transposed
from lavagna.layers.rg_lru import RGLRU
from lavagna.layers.softmax_attention import SoftmaxAttention
from lavagna.models import ModelConfig

RECURRENT = RGLRU.name
KINDS = {"recurrent": RECURRENT, "attention": ATTENTION}
WITH_BIAS = ("weight", "bias")


class RecurrentGemma(Format):
    """`RecurrentGemmaForCausalLM`: Griffin with logits that are capped, and an embedding times sqrt(hidden_size).

    That root is rounded to bfloat16, whatever the dtype of the model. Norms have factors 1 + weight. The gates' blocks
    are written (in, out), and `recurrent_param` is our Lambda.
    """

    name = "recurrent_gemma"
    tied = (EMBEDDING, HEAD)

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return config.get("model_type") == self.name and EMBEDDING in names

    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        refuse_other(config, "hidden_activation", "gelu_pytorch_tanh")
        width, depth, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
        kinds = config.get("block_types") or ("recurrent", "recurrent", "attention")
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown:
            raise ValueError(f"Its block_types are {kinds}; {' and '.join(KINDS)} are read.")
        pattern = repeating([KINDS[kinds[index % len(kinds)]] for index in range(depth)])
        recurrent = {
            "heads": heads,
            "expand": (config.get("lru_width") or width) / width,
            "conv_size": config.get("conv1d_width", 4),
        }
        attention = {
            "heads": heads,
            "head_dim": width // heads,
            "kv_heads": config.get("num_key_value_heads") or heads,
            "window": config.get("attention_window_size", 2048),
            "bias": config.get("attention_bias", False),
            "out_bias": True,
        } | rotary_options(config, width // heads, fraction=0.5)
        return ModelConfig(
            layer=pattern,
            d_model=width,
            depth=depth,
            options=by_layer(pattern, **{RECURRENT: recurrent, ATTENTION: attention}),
            block={
                "norm": "zero_centered_rms",
                "mlp": "geglu_tanh_bias",
                "mlp_width": config["intermediate_size"] // 2,
            },
            norm_eps=config.get("rms_norm_eps", 1e-6),
            tie_embeddings=config.get("tie_word_embeddings", True),
            embedding_scale=torch.tensor(width**0.5, device="cpu").bfloat16().item(),
            logit_cap=config.get("logits_soft_cap", 30.0),
            **vocabulary(config["vocab_size"], shapes[EMBEDDING][0]),
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        rules = frame(model_config, "model", norm="final_norm")
        for index, name in enumerate(model_config.layers):
            ours, theirs = f"blocks.{index}", f"model.layers.{index}"
            mixer = (f"{ours}.mixer", f"{theirs}.temporal_block")
            if name == RECURRENT:
                rules += _recurrent_rules(*mixer, built(model_config, RGLRU))
            else:
                rules += attention_rules(*mixer, built(model_config, SoftmaxAttention))
            width = around(model_config, name).mlp_width
            rules += mlp_rules(f"{ours}.mlp", f"{theirs}.mlp_block", width, kinds=WITH_BIAS)
            rules += [
                same(f"{ours}.mixer_norm.weight", f"{theirs}.temporal_pre_norm.weight"),
                same(f"{ours}.mlp_norm.weight", f"{theirs}.channel_pre_norm.weight"),
            ]
        return rules

    def held(self) -> tuple[str, ...]:
        return tuple(KINDS.values())

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        kinds = both_kinds(model_config, KINDS)
        recurrent, attention = built(model_config, RGLRU), built(model_config, SoftmaxAttention)
        if attention.window is None:
            raise ValueError("Its attention has a window, and this model's has none.")
        if model_config.logit_cap is None:
            raise ValueError("Its logits are capped, and this model's are not.")
        return attention_sizes(attention) | {
            "architectures": ["RecurrentGemmaForCausalLM"],
            "model_type": self.name,
            **frame_config(model_config),
            "intermediate_size": 2 * around(model_config, RECURRENT).mlp_width,
            "block_types": kinds,
            "attention_window_size": attention.window,
            "lru_width": len(recurrent.Lambda),
            "conv1d_width": recurrent.conv.width,
            "hidden_activation": "gelu_pytorch_tanh",
            "logits_soft_cap": model_config.logit_cap,
            "rms_norm_eps": model_config.norm_eps,
        }


def _recurrent_rules(ours: str, theirs: str, layer: RGLRU) -> list[Rule]:
    names = {"gate": "linear_y", "x": "linear_x", "out": "linear_out"}
    rules = [
        same(f"{ours}.{mine}.{kind}", f"{theirs}.{its}.{kind}") for mine, its in names.items() for kind in WITH_BIAS
    ]
    for mine, its in (("input_gate", "input_gate"), ("decay_gate", "recurrent_gate")):
        flat = reshape((layer.heads.width,), tuple(layer.heads))
        rules += [
            transposed(f"{ours}.{mine}.weight", f"{theirs}.rg_lru.{its}_weight"),
            same(f"{ours}.{mine}.bias", f"{theirs}.rg_lru.{its}_bias", flat),
        ]
    return [
        *rules,
        same(f"{ours}.conv.weight", f"{theirs}.conv_1d.weight", squeeze(1)),
        same(f"{ours}.conv.bias", f"{theirs}.conv_1d.bias"),
        same(f"{ours}.Lambda", f"{theirs}.rg_lru.recurrent_param"),
    ]
