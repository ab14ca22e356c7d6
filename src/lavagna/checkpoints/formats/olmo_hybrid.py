"""OLMo Hybrid as Hugging Face's transformers write it: gated delta layers, and attention every few of them."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from lavagna.checkpoints.format import Config, Format, around, built, frame_config, refuse_other, vocabulary
from lavagna.checkpoints.formats.decoder import (
    ATTENTION,
    DELTA,
    EMBEDDING,
    HEAD,
    KINDS,
    attention_config,
    both_kinds,
    by_layer,
    delta_config,
    frame,
    layer_pattern,
    mixer_rules,
    mlp_rules,
    rotary_options,
)
from lavagna.checkpoints.rules import Rule, same, squeeze, stacked
from lavagna.layers.gated_delta_net import GatedDeltaNet
from lavagna.layers.softmax_attention import SoftmaxAttention
from lavagna.models import ModelConfig

# Of the norm of each head's read, whatever the configuration says of the others.
READ_EPS = 1e-5
PLACES = {DELTA: "pre", ATTENTION: "post"}
CONVS = tuple(f"{part}_conv1d.weight" for part in "qkv")
CONV, BEHIND = "linear_attn.conv1d.weight", "post_attention_layernorm.weight"


class OlmoHybrid(Format):
    """`OlmoHybridForCausalLM` with the names that its files were published with.

    Norms stand before gated delta layers and behind attention. Betas reach 2 with `linear_allow_neg_eigval`. A
    `rope_theta` of null, or `rope_parameters` of null, turns nothing.
    """

    name = "olmo_hybrid"
    tied = (EMBEDDING, HEAD)
    # Their names of the mixer's norm and the net's, before the layers or behind them.
    norms: ClassVar[dict[str, tuple[str, str]]] = {
        "pre": ("attention_layer_norm", "feedforward_layer_norm"),
        "post": ("post_attention_layernorm", "post_feedforward_layernorm"),
    }

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return config.get("model_type") == "olmo_hybrid" and EMBEDDING in names and self.names_fit(names)

    def names_fit(self, names: Collection[str]) -> bool:
        """Whether these are the names of this way of writing the model."""
        return not _any_ends(names, CONV) and _any_ends(names, BEHIND)

    def conv_rule(self, ours: str, theirs: str, sizes: list[int]) -> Rule:
        """The convolutions over queries, keys and values, so many channels of each as `sizes` says."""
        return stacked(ours, [f"{theirs}.{name}" for name in CONVS], sizes).then(squeeze(1))

    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        refuse_other(config, "hidden_act", "silu", "swish")
        heads, eps = config["num_attention_heads"], config.get("rms_norm_eps", 1e-6)
        groups = config.get("linear_num_key_heads") or heads
        keys = config.get("linear_key_head_dim") or int(0.75 * config["hidden_size"] / groups)
        delta = {
            "heads": groups,
            "head_dim": keys,
            "value_heads": config.get("linear_num_value_heads") or heads,
            "expand": (config.get("linear_value_head_dim") or 2 * keys) / keys,
            "conv_size": config.get("linear_conv_kernel_dim", 4),
            "max_beta": 2.0 if config.get("linear_allow_neg_eigval", True) else 1.0,
            "norm_eps": READ_EPS,
        }
        head_dim = config.get("head_dim") or config["hidden_size"] // heads
        attention = {
            "heads": heads,
            "head_dim": head_dim,
            "kv_heads": config.get("num_key_value_heads") or heads,
            "qk_norm": "width",
            "norm_eps": eps,
            "bias": config.get("attention_bias", False),
            "out_bias": config.get("attention_bias", False),
        } | _turned(config, head_dim)
        pattern = layer_pattern(config)
        mlp = {"norm": "rms", "mlp": "swiglu", "mlp_width": config["intermediate_size"]}
        return ModelConfig(
            layer=pattern,
            d_model=config["hidden_size"],
            depth=config["num_hidden_layers"],
            options=by_layer(pattern, **{DELTA: delta, ATTENTION: attention}),
            block=by_layer(pattern, **{name: mlp | {"norm_place": place} for name, place in PLACES.items()}),
            norm_eps=eps,
            tie_embeddings=config.get("tie_word_embeddings", False),
            **vocabulary(config["vocab_size"], shapes[EMBEDDING][0]),
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        rules = frame(model_config, "model")
        for index, name in enumerate(model_config.layers):
            ours, theirs, block = f"blocks.{index}", f"model.layers.{index}", around(model_config, name)
            rules += mixer_rules(model_config, name, ours, theirs, self.delta_rules)
            rules += mlp_rules(f"{ours}.mlp", f"{theirs}.mlp", block.mlp_width)
            norms = zip(("mixer_norm", "mlp_norm"), self.norms[block.norm_place], strict=True)
            rules += [same(f"{ours}.{mine}.weight", f"{theirs}.{its}.weight") for mine, its in norms]
        return rules

    def delta_rules(self, ours: str, theirs: str, layer: GatedDeltaNet) -> list[Rule]:
        """A gated delta layer."""
        names = {"gate": "g_proj", "beta": "b_proj", "step": "a_proj", "norm": "o_norm", "out": "o_proj"}
        parts = [f"{theirs}.{part}_proj.weight" for part in "qkv"]
        return [
            stacked(f"{ours}.qkv.linear.weight", parts, layer.qkv.sizes),
            self.conv_rule(f"{ours}.qkv.conv.weight", theirs, layer.qkv.sizes),
            *(same(f"{ours}.{mine}.weight", f"{theirs}.{its}.weight") for mine, its in names.items()),
            *(same(f"{ours}.{name}", f"{theirs}.{name}") for name in ("A_log", "dt_bias")),
        ]

    def held(self) -> tuple[str, ...]:
        return tuple(KINDS.values())

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        kinds = both_kinds(model_config, KINDS)
        delta, attention = built(model_config, GatedDeltaNet), built(model_config, SoftmaxAttention)
        return {
            **delta_config(delta),
            **attention_config(attention),
            "architectures": ["OlmoHybridForCausalLM"],
            "model_type": "olmo_hybrid",
            **frame_config(model_config),
            "intermediate_size": around(model_config, DELTA).mlp_width,
            "layer_types": kinds,
            "linear_allow_neg_eigval": delta.max_beta == 2,
            "hidden_act": "silu",
            "rms_norm_eps": model_config.norm_eps,
            # Where a file is silent theirs takes ids that lie beyond a small vocabulary.
            "pad_token_id": None,
            "eos_token_id": None,
        }

    def unused(self, names: Collection[str]) -> set[str]:
        """Heads that predict further tokens at once."""
        return {name for name in names if name.startswith("mtp.")}


class OlmoHybridResaved(OlmoHybrid):
    """The names that `save_pretrained` of transformers 5 writes, which renames the norms behind attention too.

    And it cuts the convolutions into three equal parts, whatever the widths of queries, keys and values; only put
    together again are they right.
    """

    name = "olmo_hybrid_resaved"
    norms: ClassVar[dict[str, tuple[str, str]]] = OlmoHybrid.norms | {
        "post": ("feedforward_layer_norm", "post_feedforward_layernorm")
    }

    def names_fit(self, names: Collection[str]) -> bool:
        return not _any_ends(names, CONV) and not _any_ends(names, BEHIND)

    def conv_rule(self, ours: str, theirs: str, sizes: list[int]) -> Rule:
        third = -(-sum(sizes) // 3)
        return super().conv_rule(ours, theirs, [third, third, sum(sizes) - 2 * third])


class OlmoHybridInMemory(OlmoHybrid):
    """The names that the parameters have in a model of transformers 5."""

    name = "olmo_hybrid_in_memory"
    norms: ClassVar[dict[str, tuple[str, str]]] = OlmoHybrid.norms | {
        "pre": ("input_layernorm", "post_attention_layernorm")
    }

    def names_fit(self, names: Collection[str]) -> bool:
        return _any_ends(names, CONV)

    def conv_rule(self, ours: str, theirs: str, sizes: list[int]) -> Rule:
        return same(ours, f"{theirs}.conv1d.weight", squeeze(1))


def _any_ends(names: Collection[str], end: str) -> bool:
    return any(name.endswith(end) for name in names)


def _turned(config: Config, head_dim: int) -> dict[str, Any]:
    # Written so where the model was trained without positions; a file without the key has the usual ones.
    if config.get("rope_parameters", {}) is None and config.get("rope_theta") is None:
        return {"rotary_fraction": 0.0}
    turned = rotary_options(config, head_dim)
    # Theirs turns a head whole, whatever share is written.
    return turned | ({"rotary_fraction": 1.0} if turned["rotary_fraction"] else {})
