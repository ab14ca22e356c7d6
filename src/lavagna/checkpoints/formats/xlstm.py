"""xLSTM-7B and its kind, as Hugging Face's transformers and the authors' own package write it."""

from collections.abc import Collection, Mapping
from typing import Any

from lavagna.checkpoints.format import Config, Format, built, vocabulary
from lavagna.checkpoints.rules import Rule, parted, same, stacked
from lavagna.layers.mlstm import MLSTM
from lavagna.models import ModelConfig
from lavagna.models.surroundings import surroundings

HEAD, NORM = "lm_head.weight", "backbone.out_norm.weight"
BLOCK = "backbone.blocks.{}."
KINDS = ("weight", "bias")
Shapes = Mapping[str, tuple[int, ...]]


class XLSTM(Format):
    """`xLSTMForCausalLM`: mLSTM blocks of the 7B architecture, the projections one by one or fused.

    The authors' `xLSTMLarge` differs in the name of the embedding alone. Its folder has a config.yaml, which is not
    read: sizes come from the shapes, and what shapes don't tell is taken as published, caps of 15 and 30, eps 1e-6.
    """

    name = "xlstm"
    embedding = "backbone.embeddings.weight"

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return config.get("model_type") == "xlstm" and XLSTM.embedding in names

    def model_config(self, config: Config, shapes: Shapes) -> ModelConfig:
        width, heads = config.get("hidden_size", 4096), config.get("num_heads", 8)
        _refuse(config, width, shapes)
        factors = config.get("qk_dim_factor", 0.5), config.get("v_dim_factor", 1.0)
        keys, values = (int(width * factor) for factor in factors)
        hidden = width * config.get("ffn_proj_factor", 2.667)
        multiple = config.get("ffn_round_up_to_multiple_of", 64)
        hidden = int((hidden + multiple - 1) // multiple * multiple)
        return _model(
            config, shapes[self.embedding], config.get("num_hidden_layers", 32), (heads, keys, values, hidden)
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        layer, hidden = layer_of(model_config), mlp_width(model_config)
        rules = [same("embedding.weight", self.embedding), same("norm.weight", NORM), same("head.weight", HEAD)]
        fused = config.get("weight_mode", "single") == "fused"
        for index in range(model_config.depth):
            ours, theirs = f"blocks.{index}.", BLOCK.format(index)
            rules += [
                same(f"{ours}mixer_norm.weight", f"{theirs}norm_mlstm.weight"),
                same(f"{ours}mixer.norm.weight", f"{theirs}mlstm_layer.multihead_norm.weight"),
                same(f"{ours}mixer.out.weight", f"{theirs}mlstm_layer.out_proj.weight"),
                same(f"{ours}mlp_norm.weight", f"{theirs}norm_ffn.weight"),
                same(f"{ours}mlp.down.weight", f"{theirs}ffn.proj_down.weight"),
                *(_fused if fused else _single)(layer, hidden, ours, theirs),
            ]
        return rules

    def held(self) -> tuple[str, ...]:
        return ("mlstm",)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        layer, hidden = layer_of(model_config), mlp_width(model_config)
        if model_config.tie_embeddings:
            raise ValueError("Its embedding and head are never one matrix. Set tie_embeddings=False.")
        if layer.norm.eps != model_config.norm_eps:
            raise ValueError(f"The heads' norms have eps {layer.norm.eps}, the blocks' {model_config.norm_eps}.")
        width, (keys, values) = model_config.d_model, channels(layer)
        return {
            "architectures": ["xLSTMForCausalLM"],
            "model_type": "xlstm",
            "vocab_size": model_config.vocab_rows,
            "hidden_size": width,
            "embedding_dim": width,
            "num_hidden_layers": model_config.depth,
            "num_blocks": model_config.depth,
            "num_heads": layer.keys.count,
            "qk_dim_factor": keys / width,
            "v_dim_factor": values / width,
            # Half a channel more, because the product is rounded down.
            "ffn_proj_factor": (hidden + 0.5) / width,
            "ffn_round_up_to_multiple_of": 1,
            "norm_eps": model_config.norm_eps,
            "eps": layer.normalizer_eps,
            "gate_soft_cap": _cap(layer.gate_cap),
            "output_logit_soft_cap": _cap(model_config.logit_cap),
            "use_bias": False,
            "add_out_norm": True,
            "weight_mode": "single",
            "tie_word_embeddings": False,
        }


class NativeXLSTM(XLSTM):
    """`xLSTMLarge` of the package xlstm: the same tensors, the embedding by another name."""

    name = "xlstm_large"
    embedding = "embedding.weight"

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return self.embedding in names and any(name.endswith("mlstm_layer.igate_preact.weight") for name in names)

    def model_config(self, config: Config, shapes: Shapes) -> ModelConfig:
        first = BLOCK.format(0)
        heads = shapes[f"{first}mlstm_layer.igate_preact.weight"][0]
        keys, values = (shapes[f"{first}mlstm_layer.{part}.weight"][0] for part in "qv")
        hidden = shapes[f"{first}ffn.proj_up.weight"][0]
        depth = 1 + max(int(name.split(".")[2]) for name in shapes if name.startswith("backbone.blocks."))
        _refuse(config, shapes[self.embedding][1], shapes)
        return _model(config, shapes[self.embedding], depth, (heads, keys, values, hidden))

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        return super().foreign_config(model_config) | {"model_type": "xlstm_large"}


def _model(config: Config, embedding: tuple[int, ...], depth: int, sizes: tuple[int, int, int, int]) -> ModelConfig:
    """A model by its sizes: heads, channels of all keys and all values, channels inside the feed-forward net."""
    heads, keys, values, hidden = sizes
    width = config.get("hidden_size", embedding[1])
    for what, count in (("keys", keys), ("values", values)):
        if count % heads:
            raise ValueError(f"{heads} heads do not divide the {count} channels of the {what}.")
    eps = config.get("norm_eps", 1e-6)
    options = {
        "block": "7b",
        "heads": heads,
        "head_dim": keys // heads,
        "expand_k": keys / width,
        "expand": values / width,
        "gate_cap": config.get("gate_soft_cap", 15.0) or 0,
        "norm_eps": eps,
        "normalizer_eps": config.get("eps", 1e-6),
    }
    return ModelConfig(
        layer="mlstm",
        d_model=width,
        depth=depth,
        tie_embeddings=False,
        norm_eps=eps,
        logit_cap=config.get("output_logit_soft_cap", 30.0),
        options=options,
        block={"mlp_width": hidden},
        **vocabulary(config.get("vocab_size", embedding[0]), embedding[0]),
    )


def _refuse(config: Config, width: int, shapes: Shapes) -> None:
    """Raises ValueError on what a config asks for and the model can't do, by its name there."""
    if config.get("use_bias", False):
        raise ValueError("use_bias is true, but the projections of the block have none.")
    # transformers has the norm whatever it says.
    if not config.get("add_out_norm", True) and NORM not in shapes:
        raise ValueError("add_out_norm is false, but there is always a norm before the head.")
    multiple = config.get("mlstm_round_up_to_multiple_of", 1)
    for factor in ("qk_dim_factor", "v_dim_factor"):
        if factor in config and int(width * config[factor]) % multiple:
            raise ValueError(f"mlstm_round_up_to_multiple_of is {multiple}, which does not divide {factor} * {width}.")


def _cap(given: float | None) -> float | None:
    # Their class of the config refuses an int.
    return float(given) if given else None


def layer_of(model_config: ModelConfig) -> MLSTM:
    """One of a model's layers, as `built`. Raises ValueError where it is that of another block."""
    layer = built(model_config, MLSTM)
    if layer.block != "7b":
        raise ValueError(f"It holds the block '7b', but the layers have block={layer.block!r}.")
    return layer


def mlp_width(model_config: ModelConfig) -> int:
    """Channels inside a block's feed-forward net."""
    chosen = model_config.block_choices("mlstm")
    return surroundings(layer_of(model_config), model_config.mlp_factor, chosen).mlp_width


def channels(layer: MLSTM) -> tuple[int, int]:
    """Channels of all keys and of all values."""
    return layer.keys.width, layer.values.width


def _single(layer: MLSTM, hidden: int, ours: str, theirs: str) -> list[Rule]:
    """The projections of a block one by one."""
    qkv = [f"{theirs}mlstm_layer.{part}.weight" for part in "qkv"]
    mlp = [f"{theirs}ffn.{part}.weight" for part in ("proj_up_gate", "proj_up")]
    keys, values = channels(layer)
    rules = [
        stacked(f"{ours}mixer.front.qkv.linear.weight", qkv, [keys, keys, values]),
        same(f"{ours}mixer.front.gate.weight", f"{theirs}mlstm_layer.ogate_preact.weight"),
        stacked(f"{ours}mlp.gate_up.weight", mlp, [hidden, hidden]),
    ]
    for gate, named in (("input_gate", "igate_preact"), ("forget_gate", "fgate_preact")):
        rules += [same(f"{ours}mixer.{gate}.{kind}", f"{theirs}mlstm_layer.{named}.{kind}") for kind in KINDS]
    return rules


def _fused(layer: MLSTM, hidden: int, ours: str, theirs: str) -> list[Rule]:
    """The projections of a block in three matrices: q, k, v and the output gate; both gates; both halves of the net."""
    keys, values = channels(layer)
    front = [f"{ours}mixer.front.{part}.weight" for part in ("qkv.linear", "gate")]
    rules = [
        parted(front, f"{theirs}mlstm_layer.qkv_opreact.weight", [2 * keys + values, values]),
        same(f"{ours}mlp.gate_up.weight", f"{theirs}ffn.proj_up_gate_z.weight"),
    ]
    for kind in KINDS:
        gates = [f"{ours}mixer.{gate}.{kind}" for gate in ("input_gate", "forget_gate")]
        rules.append(parted(gates, f"{theirs}mlstm_layer.ifgate_preact.{kind}", [layer.keys.count] * 2))
    return rules
