"""RWKV-4: the file of its authors, and the folder of transformers."""

from collections.abc import Collection, Mapping
from typing import Any

from lavagna.checkpoints.format import Config, Format, frame_config, vocabulary
from lavagna.checkpoints.formats.rwkv_file import Part, RwkvFile, Shapes, first_layer, norm, sizes
from lavagna.checkpoints.rules import Rule, same
from lavagna.models import ModelConfig

KEY = "blocks.0.att.key.weight"
EMBEDDING, HEAD = "rwkv.embeddings.weight", "head.weight"


class Rwkv4(RwkvFile):
    """RWKV-4 in a file of RWKV-LM. Decays are written as logarithms of their rates, which is what our layer keeps."""

    layer = "rwkv4"
    blends = "time_mix_"

    def options(self, shapes: Shapes) -> dict[str, Any]:
        channels, width = sizes(shapes, KEY, 2)
        return {"expand": channels / width}

    def time_mix(self, part: Part, layer: Any, index: int) -> list[Rule]:
        blends = {f"shift.{reader}": f"time_mix_{reader}" for reader in "kvr"}
        return _time_mix(part, layer, blends)


class Rwkv(Format):
    """`RwkvForCausalLM` of transformers: RWKV-4 under longer names.

    That model halves its stream every `rescale_every` blocks and divides weights to match, in place, the first time it
    runs; files hold the weights as they were trained, and here nothing is halved.
    """

    name = "rwkv"
    tied = (EMBEDDING, HEAD)

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return config.get("model_type") == self.name and EMBEDDING in names

    def model_config(self, config: Config, shapes: Shapes) -> ModelConfig:
        width = config["hidden_size"]
        # What is null there is computed from the width, by the class of their config.
        channels = config.get("attention_hidden_size") or width
        return ModelConfig(
            layer="rwkv4",
            d_model=width,
            depth=config["num_hidden_layers"],
            tie_embeddings=config.get("tie_word_embeddings", False),
            norm_eps=config.get("layer_norm_epsilon", 1e-5),
            block={"mlp_width": config.get("intermediate_size") or 4 * width},
            options={"expand": channels / width},
            **vocabulary(config["vocab_size"], shapes[EMBEDDING][0]),
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        width, layer = model_config.d_model, first_layer(model_config)
        rules = [same("embedding.weight", EMBEDDING), *norm("norm", "rwkv.ln_out")]
        rules += norm("embedding_norm", "rwkv.blocks.0.pre_ln")
        for index in range(model_config.depth):
            ours, theirs = f"blocks.{index}", f"rwkv.blocks.{index}"
            att = Part(f"{ours}.mixer", f"{theirs}.attention", {})
            ffn = Part(f"{ours}.mlp", f"{theirs}.feed_forward", {})
            blends = {"shift.k": "time_mix_key", "shift.v": "time_mix_value", "shift.r": "time_mix_receptance"}
            rules += norm(f"{ours}.mixer_norm", f"{theirs}.ln1") + norm(f"{ours}.mlp_norm", f"{theirs}.ln2")
            rules += _time_mix(att, layer, blends)
            rules += [ffn.vector(f"shift.{each[0]}", f"time_mix_{each}", (width,)) for each in ("key", "receptance")]
            rules += ffn.matrices(key="key", value="value", receptance="receptance")
        return rules if model_config.tie_embeddings else [*rules, same("head.weight", HEAD)]

    def held(self) -> tuple[str, ...]:
        return ("rwkv4",)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        block = model_config.block_choices("rwkv4")
        return {
            "architectures": ["RwkvForCausalLM"],
            "model_type": self.name,
            **frame_config(model_config),
            "attention_hidden_size": first_layer(model_config).width,
            "intermediate_size": block.get("mlp_width", 4 * model_config.d_model),
            "layer_norm_epsilon": model_config.norm_eps,
            "rescale_every": 0,
        }


def _time_mix(part: Part, layer: Any, blends: Mapping[str, str]) -> list[Rule]:
    return [
        *(part.vector(ours, theirs, (layer.d_model,)) for ours, theirs in blends.items()),
        part.vector("w0", "time_decay", (layer.width,), (layer.width,)),
        part.vector("u", "time_first", (layer.width,), (layer.width,)),
        *part.matrices(key="key", value="value", receptance="receptance", out="output"),
    ]
