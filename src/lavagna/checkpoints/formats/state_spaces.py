"""Mamba and Mamba-2 as their authors' package mamba_ssm writes them."""

from collections.abc import Collection, Mapping
from typing import Any

from lavagna.checkpoints.format import Config, Format, built, vocabulary
from lavagna.checkpoints.formats.mamba import HEAD, NORM, frame, mamba_rules
from lavagna.checkpoints.formats.mamba2 import mamba2_rules
from lavagna.checkpoints.rules import Rule
from lavagna.layers import registry
from lavagna.layers.mamba2 import Mamba2
from lavagna.models import ModelConfig

EMBEDDING = "backbone.embedding.weight"
# Their names of the options of each layer, and ours.
SHARED = {"expand": "expand", "d_conv": "conv_size", "d_state": "d_state", "bias": "bias", "conv_bias": "conv_bias"}
OPTIONS = {
    "mamba": SHARED | {"dt_rank": "dt_rank"},
    "mamba2": SHARED
    | {"headdim": "head_dim", "ngroups": "groups", "dt_limit": "dt_limit"}
    | {"D_has_hdim": "D_per_channel", "norm_before_gate": "norm_before_gate"},
}
# What their layers have where the config is silent and ours have something else.
DEFAULTS = {"mamba": {}, "mamba2": {"d_state": 128, "headdim": 64}}
# How values start and how they are computed; no model is another for it.
IDLE = {
    "layer", "dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "A_init_range", "conv_init", "chunk_size",
    "use_mem_eff_path", "use_fast_path", "rmsnorm", "d_ssm",
}  # fmt: skip
NORM_EPS = 1e-5


class StateSpaces(Format):
    """`MambaLMHeadModel`: a config with d_model, n_layer and ssm_cfg; the vocabulary is padded to a multiple of eight.

    The same tensors as transformers' own, but for `backbone.embedding`. Hybrids with attention are not read.
    """

    name = "state_spaces"
    tied = (EMBEDDING, HEAD)
    file = "pytorch_model.bin"

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return "d_model" in config and "n_layer" in config and NORM in names

    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        ssm = dict(config.get("ssm_cfg") or {})
        layer = ssm.get("layer", "Mamba1").lower().removesuffix("1")
        if layer not in OPTIONS:
            raise ValueError(f"Its ssm_cfg names the layer {ssm['layer']!r}; known are Mamba1 and Mamba2.")
        _refuse(config, ssm, OPTIONS[layer])
        options = {OPTIONS[layer][key]: value for key, value in (DEFAULTS[layer] | ssm).items() if key not in IDLE}
        if options.get("dt_rank") == "auto":
            del options["dt_rank"]
        multiple = config.get("pad_vocab_size_multiple", 8)
        rows = -(-config["vocab_size"] // multiple) * multiple
        return ModelConfig(
            layer=layer,
            d_model=config["d_model"],
            depth=config["n_layer"],
            tie_embeddings=config.get("tie_embeddings", True),
            norm_eps=NORM_EPS,
            options=options,
            block={} if config.get("rms_norm", True) else {"norm": "layer"},
            **vocabulary(config["vocab_size"], rows),
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        mixers = mamba_rules if model_config.layer == "mamba" else mamba2_rules
        return [*frame(model_config, EMBEDDING), *mixers(model_config)]

    def held(self) -> tuple[str, ...]:
        return tuple(OPTIONS)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        layer = model_config.layers[0]
        if len(set(model_config.layers)) > 1:
            raise ValueError(f"It holds layers of {' or '.join(OPTIONS)}, but this model has both.")
        options = registry.options(layer) | model_config.layer_options(layer)
        if layer == "mamba2":
            sized = built(model_config, Mamba2)
            options |= {"head_dim": sized.values.size, "d_state": sized.keys.size}
        ssm = {theirs: options[ours] for theirs, ours in OPTIONS[layer].items() if options[ours] is not None}
        return {
            "d_model": model_config.d_model,
            "d_intermediate": 0,
            "n_layer": model_config.depth,
            "vocab_size": model_config.vocab_size,
            "ssm_cfg": {"layer": layer.capitalize() if layer == "mamba2" else "Mamba1"} | ssm,
            "attn_layer_idx": [],
            "attn_cfg": {},
            "rms_norm": model_config.block_choices(layer).get("norm", "rms") == "rms",
            "residual_in_fp32": True,
            "fused_add_norm": True,
            "pad_vocab_size_multiple": model_config.vocab_multiple,
            "tie_embeddings": model_config.tie_embeddings,
        }


def _refuse(config: Config, ssm: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises ValueError on what would be another model than ours."""
    refused = {"attn_layer_idx": [], "d_intermediate": 0}
    for key, wanted in refused.items():
        if config.get(key, wanted) not in (wanted, None):
            raise ValueError(f"Its {key} is {config[key]!r}, but only {wanted!r} is read.")
    if ssm.get("rmsnorm", True) is not True or ssm.get("d_ssm") is not None:
        raise ValueError("Its ssm_cfg has rmsnorm off or a d_ssm, which are not read.")
    unknown = [key for key in ssm if key not in known and key not in IDLE]
    if unknown:
        raise ValueError(f"Its ssm_cfg has {', '.join(unknown)}, which is not known.")
