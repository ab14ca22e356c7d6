"""RWKV-7 as flash-linear-attention writes it."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch

from lavagna.checkpoints.format import Config, Format, around, built, refuse_other, vocabulary
from lavagna.checkpoints.formats.fla import EMBEDDING, HEAD, renamed
from lavagna.checkpoints.rules import Rule, parted, reshaped, same, squeeze
from lavagna.layers import registry, rwkv7
from lavagna.models import ModelConfig

READERS = "rwkvag"
# Our names of the maps of low rank and of what is added to them, and theirs of both.
ADAPTERS = {"decay": ("w0", "w_lora"), "rate": ("a0", "a_lora"), "residual": ("v0", "v_lora"), "gate": (None, "g_lora")}
RANKS = {
    "decay_rank": ("decay_low_rank_dim", 64),
    "rate_rank": ("a_low_rank_dim", 64),
    "value_rank": ("v_low_rank_dim", 16),
    "gate_rank": ("gate_low_rank_dim", 128),
}
SAME = {
    "receptance.weight": "r_proj.weight",
    "key.weight": "k_proj.weight",
    "value.weight": "v_proj.weight",
    "out.weight": "o_proj.weight",
    "norm.weight": "g_norm.weight",
    "norm.bias": "g_norm.bias",
    "k_k": "k_k",
    "k_a": "k_a",
    "r_k": "r_k",
}


class RWKV7(Format):
    """`RWKV7ForCausalLM`: maps of low rank with a bias for what is added to them, and `pre_norm` in the first block.

    `joined`: files of the layer's first version, with all six blends of the time mix in one tensor, `x_x`.
    """

    name = "fla_rwkv7"
    joined: ClassVar[bool] = False
    tied = (EMBEDDING, HEAD)

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        joined = "model.layers.0.attn.x_x" in names
        return config.get("model_type") == "rwkv7" and "model.norm.weight" in names and joined == self.joined

    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        width, depth = config["hidden_size"], config["num_hidden_layers"]
        for key, legal in {"norm_bias": (True,), "hidden_act": ("sqrelu",), "attn": (None,)}.items():
            refuse_other(config, key, *legal)
        refuse_other(config, "value_dim", None, width, [width] * depth)
        size, eps = config.get("head_dim") or width // config["num_heads"], config.get("norm_eps", 1e-5)
        if width % size:
            raise ValueError(f"head_dim is {size}, which does not divide hidden_size {width}.")
        ranks = {ours: config.get(theirs, default) for ours, (theirs, default) in RANKS.items()}
        return ModelConfig(
            layer="rwkv7",
            d_model=width,
            depth=depth,
            tie_embeddings=config.get("tie_word_embeddings", False),
            norm_eps=eps,
            embedding_norm=config.get("norm_first", True),
            block={"norm": "layer", "mlp": "rwkv7", "mlp_width": _hidden(config)},
            options={"heads": width // size, "head_dim": size, "norm_eps": size * eps} | ranks,
            **vocabulary(config["vocab_size"], next(shapes[name][0] for name in (EMBEDDING, HEAD) if name in shapes)),
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        rules = [same("embedding.weight", EMBEDDING), *_norm("norm", "model.norm")]
        if model_config.embedding_norm is not False:
            rules += _norm("embedding_norm", "model.layers.0.pre_norm")
        if not model_config.tie_embeddings:
            rules.append(same("head.weight", HEAD))
        for index in range(model_config.depth):
            ours, theirs = f"blocks.{index}", f"model.layers.{index}"
            rules += [
                *_norm(f"{ours}.mixer_norm", f"{theirs}.attn_norm"),
                *self._mixer(f"{ours}.mixer", f"{theirs}.attn", model_config.d_model, residual=index > 0),
                *_norm(f"{ours}.mlp_norm", f"{theirs}.ffn_norm"),
                same(f"{ours}.mlp.shift.k", f"{theirs}.ffn.x_k"),
                same(f"{ours}.mlp.key.weight", f"{theirs}.ffn.key.weight"),
                same(f"{ours}.mlp.value.weight", f"{theirs}.ffn.value.weight"),
            ]
        return rules

    def held(self) -> tuple[str, ...]:
        return ("rwkv7",)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        layer, block = built(model_config, rwkv7.RWKV7), around(model_config, "rwkv7")
        options = registry.options("rwkv7") | model_config.layer_options("rwkv7")
        if block[:3] != ("layer", "pre", "rwkv7") or options["out_bias"]:
            raise ValueError(
                f"{self.name} has LayerNorms before, RWKV-7's channel mix and no out_bias; these have {block}."
            )
        if model_config.embedding_scale != 1 or model_config.logit_cap or model_config.head_bias:
            raise ValueError(f"{self.name} has no embedding_scale, logit_cap or head_bias.")
        width, eps, size = model_config.d_model, model_config.norm_eps, layer.heads.size
        if layer.heads.count * size != width or abs(options["norm_eps"] - size * eps) > 1e-9 * size * eps:
            raise ValueError(f"{self.name} has heads as wide as the model together, and norm_eps {size} times its own.")
        # A first layer has no map for the value, so that one is asked which would.
        with torch.device("meta"):
            later: Any = registry.build("rwkv7", width, **options | {"value_residual": True})
        adapters = {name: later.get_submodule(name.removesuffix("_rank")) for name in RANKS if name != "value_rank"}
        adapters["value_rank"] = later.residual
        ranks = {RANKS[name][0]: adapter.down.weight.shape[0] for name, adapter in adapters.items()}
        return {
            "architectures": ["RWKV7ForCausalLM"],
            "model_type": "rwkv7",
            "vocab_size": model_config.vocab_rows,
            "hidden_size": width,
            "intermediate_size": block.mlp_width,
            "num_hidden_layers": model_config.depth,
            "head_dim": size,
            "num_heads": layer.heads.count,
            "hidden_act": "sqrelu",
            "norm_first": layer.embedding_norm if model_config.embedding_norm is None else model_config.embedding_norm,
            "norm_bias": True,
            "norm_eps": eps,
            "value_dim": [width] * model_config.depth,
            "attn": None,
            "tie_word_embeddings": model_config.tie_embeddings,
        } | ranks

    def unused(self, names: Collection[str]) -> set[str]:
        # The first layer has no other's value to mix in, though some files hold the map for it.
        return {name for name in names if name.startswith("model.layers.0.attn.v_lora.")}

    def _mixer(self, ours: str, theirs: str, width: int, *, residual: bool) -> list[Rule]:
        blends = [f"{ours}.shift.{reader}" for reader in READERS]
        if self.joined:
            rules = [parted(blends, f"{theirs}.x_x", [1] * len(blends)).then(squeeze(0))]
        else:
            names = [f"{theirs}.x_{reader}" for reader in READERS]
            rules = [reshaped(*pair, (width,), (1, 1, width)) for pair in zip(blends, names, strict=True)]
        for part, (added, adapter) in ADAPTERS.items():
            if residual or part != "residual":
                names = {f"{part}.down.weight": "0.weight", f"{part}.up.weight": "2.weight"}
                rules += renamed(ours, f"{theirs}.{adapter}.lora", names | ({added: "2.bias"} if added else {}))
        return [*rules, *renamed(ours, theirs, SAME)]


class JoinedRWKV7(RWKV7):
    """The same from before 2025-04, when the blends were one tensor."""

    name = "fla_rwkv7_joined"
    joined = True


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [same(f"{ours}.{kind}", f"{theirs}.{kind}") for kind in ("weight", "bias")]


def _hidden(config: Config) -> int:
    """Channels inside the channel mix: what the config says, or four times the width in steps of 32."""
    if config.get("intermediate_size") is not None:
        return config["intermediate_size"]
    return -(-int(config["hidden_size"] * (config.get("hidden_ratio") or 4)) // 32) * 32
