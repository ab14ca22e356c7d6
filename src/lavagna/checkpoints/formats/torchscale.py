"""RetNet as its authors' package torchscale writes it, alone or as the decoder of a fairseq model."""

import re
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch

from lavagna.checkpoints.format import Config, Format, built, vocabulary
from lavagna.checkpoints.rules import Rule, same, stacked
from lavagna.checkpoints.weights import Weights
from lavagna.layers import registry
from lavagna.layers.retention import Retention
from lavagna.models import ModelConfig
from lavagna.models.surroundings import surroundings

# What no shape tells, with the defaults of RetNetConfig.
UNTOLD = {"activation_fn": "gelu", "no_scale_embedding": True, "layernorm_eps": 1e-6}
# What makes another model of it, and the only value that is read.
REFUSED = {
    "decoder_normalize_before": True,
    "deepnorm": False,
    "multiway": False,
    "moe_freq": 0,
    "no_output_layer": False,
}
ACTIVATIONS = {"gelu": "geglu", "swish": "swiglu", "relu": "reglu"}
# Options of the layer of which theirs has this.
OPTIONS = {
    "rescale": "decay",
    "decay": "powers",
    "rotation": "interleaved",
    "affine": False,
    "kv_heads": None,
    "gate": True,
    "activation": "silu",
}
EMBEDDING, HEAD = "embed_tokens.weight", "output_projection.weight"
EMBEDDING_NORM = "layernorm_embedding.weight"
BUFFERS = ("retnet_rel_pos.decay", "retnet_rel_pos.angle")


class Torchscale(Format):
    """`RetNetDecoder`: its state dict, and a config.json with the arguments of `RetNetConfig`.

    Sizes are read off the shapes, and how many heads there are off the buffer `retnet_rel_pos.decay`, where the config
    doesn't say; without it, and without what no shape tells, the file is refused. `subln` changes nothing in a RetNet.

    The model has the rescalings of the recurrent form, R1 and R2 (`rescale="decay"`): with them logits are those of
    their steps for any eps. Their parallel form, which divides by the sum of the scores besides, is another by eps.
    """

    name = "torchscale_retnet"
    prefix: ClassVar[str] = ""
    beside = True
    tied = (EMBEDDING, HEAD)

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return "model_type" not in config and f"{self.prefix}layers.0.retention.q_proj.weight" in names

    def described(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> Config:
        # A config.json beside a file may be another model's.
        config = config if any(key.startswith("decoder_") or key in UNTOLD for key in config) else {}
        told = "decoder_retention_heads" in config or self.prefix + BUFFERS[0] in shapes
        missing = ([] if config else list(UNTOLD)) + ([] if told else ["decoder_retention_heads"])
        if missing:
            usual = ", ".join(f"{key}={value}" for key, value in UNTOLD.items())
            raise ValueError(
                f"Its tensors don't tell {', '.join(missing)}. Put a config.json beside them with what RetNetConfig "
                f"was given, decoder_retention_heads at least; by default it has {usual}."
            )
        return config

    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        self._check(config)
        untold = {key: config.get(key, default) for key, default in UNTOLD.items()}
        first, heads_of = f"{self.prefix}layers.0", self.prefix + BUFFERS[0]
        rows, width = shapes[self.prefix + EMBEDDING]
        sizes = {
            "embed_dim": width,
            "value_embed_dim": shapes[f"{first}.retention.v_proj.weight"][0],
            "ffn_embed_dim": shapes[f"{first}.ffn.fc1.weight"][0],
            "layers": 1 + max(_index(name, self.prefix) for name in shapes),
        }
        width, values, hidden, depth = (config.get(f"decoder_{key}", found) for key, found in sizes.items())
        heads = config["decoder_retention_heads"] if "decoder_retention_heads" in config else shapes[heads_of][0]
        if width % heads or values % heads:
            raise ValueError(f"decoder_retention_heads is {heads}, which does not divide its widths {width}, {values}.")
        options = {"heads": heads, "expand": values / width, "rescale": "decay", "norm_eps": untold["layernorm_eps"]}
        return ModelConfig(
            layer="retention",
            d_model=width,
            depth=depth,
            tie_embeddings=config.get("share_decoder_input_output_embed", self.prefix + HEAD not in shapes),
            norm_eps=untold["layernorm_eps"],
            embedding_norm=config.get("layernorm_embedding", f"{self.prefix}{EMBEDDING_NORM}" in shapes),
            embedding_scale=1.0 if untold["no_scale_embedding"] else width**0.5,
            block={"norm": "rms", "mlp": ACTIVATIONS[untold["activation_fn"]], "mlp_width": hidden},
            options=options,
            **self._vocabulary(config, rows),
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        layer = built(model_config, Retention)
        hidden = surroundings(layer, None, model_config.block_choices("retention")).mlp_width
        frame = {"embedding": "embed_tokens", "norm": "layer_norm"}
        frame |= {"embedding_norm": EMBEDDING_NORM.removesuffix(".weight")} if model_config.embedding_norm else {}
        frame |= {} if model_config.tie_embeddings else {"head": "output_projection"}
        rules = [same(f"{ours}.weight", f"{self.prefix}{theirs}.weight") for ours, theirs in frame.items()]
        for index in range(model_config.depth):
            ours, theirs = f"blocks.{index}", f"{self.prefix}layers.{index}"
            projections = [f"{theirs}.retention.{part}_proj.weight" for part in "qkvg"]
            rules += [
                same(f"{ours}.mixer_norm.weight", f"{theirs}.retention_layer_norm.weight"),
                stacked(f"{ours}.mixer.qkvg.weight", projections, layer.sizes),
                same(f"{ours}.mixer.out.weight", f"{theirs}.retention.out_proj.weight"),
                same(f"{ours}.mlp_norm.weight", f"{theirs}.final_layer_norm.weight"),
                stacked(
                    f"{ours}.mlp.gate_up.weight",
                    [f"{theirs}.ffn.{part}.weight" for part in ("fc1", "gate")],
                    [hidden, hidden],
                ),
                same(f"{ours}.mlp.down.weight", f"{theirs}.ffn.fc2.weight"),
            ]
        return rules

    def held(self) -> tuple[str, ...]:
        return ("retention",)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        layer = built(model_config, Retention)
        options = registry.options("retention") | model_config.layer_options("retention")
        for key, wanted in OPTIONS.items():
            if options[key] != wanted:
                raise ValueError(f"{self.name} has {key}={wanted!r}, but the model {options[key]!r}.")
        around = surroundings(layer, model_config.mlp_factor, model_config.block_choices("retention"))
        activation = next((theirs for theirs, ours in ACTIVATIONS.items() if ours == around.mlp), None)
        if activation is None or around[:2] != ("rms", "pre"):
            raise ValueError(
                f"{self.name} has RMS norms before both halves and a gated net; these blocks have {around}."
            )
        width, scale = model_config.d_model, model_config.embedding_scale
        if model_config.logit_cap or model_config.head_bias or scale not in (1, width**0.5):
            raise ValueError(f"{self.name} has no logit_cap, no head_bias, and embedding_scale 1 or sqrt(d_model).")
        if options["norm_eps"] != model_config.norm_eps or layer.keys.width != width:
            raise ValueError(f"{self.name} has one norm_eps, and keys as wide as the model.")
        return {
            "decoder_embed_dim": width,
            "decoder_value_embed_dim": layer.values.width,
            "decoder_retention_heads": layer.keys.count,
            "decoder_ffn_embed_dim": around.mlp_width,
            "decoder_layers": model_config.depth,
            "activation_fn": activation,
            "no_scale_embedding": scale == 1,
            "layernorm_embedding": bool(model_config.embedding_norm),
            "share_decoder_input_output_embed": model_config.tie_embeddings,
            "layernorm_eps": model_config.norm_eps,
            "vocab_size": model_config.vocab_rows,
        }

    def faults(self, weights: Weights) -> list[str]:
        name = self.prefix + BUFFERS[0]
        if name not in weights.entries:
            return []
        found = weights.take(name)
        heads = torch.arange(len(found), dtype=torch.float64)
        apart = (found.double() - torch.log1p(-torch.exp2(-5 - heads))).abs().max().item()
        # As far as they may be off by having been computed in float32 and kept in a narrow dtype.
        if apart <= 2**-23 + torch.finfo(found.dtype).eps / 32:
            return []
        return [f"Its {name} are not log(1 - 2^(-5 - h)), the decays of a RetNet, but differ by {apart:.2g}."]

    def unused(self, names: Collection[str]) -> set[str]:
        return {self.prefix + buffer for buffer in BUFFERS} & set(names)

    def _vocabulary(self, config: Config, rows: int) -> dict[str, Any]:
        # RetNetConfig has -1 for a size that it wasn't told.
        size = config.get("vocab_size", -1)
        return vocabulary(size if size > 0 else rows, rows)

    def _check(self, config: Config) -> None:
        for key, wanted in REFUSED.items():
            if config.get(key, wanted) != wanted:
                raise ValueError(f"{key} is {config[key]!r}, but only {wanted!r} is read.")
        if (activation := config.get("activation_fn", "gelu")) not in ACTIVATIONS:
            raise ValueError(f"activation_fn is {activation!r}, but only {', '.join(ACTIVATIONS)} are read.")


class Fairseq(Torchscale):
    """The same decoder in a language model of fairseq, whose checkpoint has it under `model` as `decoder`."""

    name = "fairseq_retnet"
    prefix = "decoder."
    tied = (prefix + EMBEDDING, prefix + HEAD)


def _index(name: str, prefix: str) -> int:
    found = re.match(rf"{re.escape(prefix)}layers\.(\d+)\.", name)
    return int(found[1]) if found else 0
