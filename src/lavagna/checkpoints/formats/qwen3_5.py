"""Qwen3.5's language models as Hugging Face's transformers write them, alone or beside a model of pictures."""

from collections.abc import Collection, Mapping
from typing import Any

from lavagna.checkpoints.format import Config
from lavagna.checkpoints.formats.decoder import EMBEDDING, HEAD
from lavagna.checkpoints.formats.qwen3_next import Qwen3Next
from lavagna.checkpoints.rules import Rule, same
from lavagna.layers.gated_delta_net import GatedDeltaNet
from lavagna.models import ModelConfig


class Qwen35(Qwen3Next):
    """`Qwen3_5ForCausalLM`: a Qwen3-Next whose gated delta layers have their projections one behind the other."""

    name = "qwen3_5"
    architecture = "Qwen3_5ForCausalLM"

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return config.get("model_type") in ("qwen3_5_text", "qwen3_5_moe_text") and EMBEDDING in names

    def experts(self, text: Mapping[str, Any]) -> list[int]:
        return [0] if "moe" in text["model_type"] or text.get("num_experts") else []

    def projection_rules(self, ours: str, theirs: str, layer: GatedDeltaNet) -> list[Rule]:
        names = {"qkv.linear": "qkv", "gate": "z", "beta": "b", "step": "a"}
        return [same(f"{ours}.{mine}.weight", f"{theirs}.in_proj_{its}.weight") for mine, its in names.items()]

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        made = super().foreign_config(model_config) | {"model_type": "qwen3_5_text"}
        del made["num_experts"]
        return made


class Qwen35WithPictures(Qwen35):
    """`Qwen3_5ForConditionalGeneration`, of which the language model is read; what sees pictures is kept aside."""

    name = "qwen3_5_multimodal"
    tied = ("model.language_model.embed_tokens.weight", HEAD)
    root = "model.language_model"

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return config.get("model_type") in ("qwen3_5", "qwen3_5_moe") and f"{self.root}.embed_tokens.weight" in names

    def text(self, config: Config) -> dict[str, Any]:
        own = {key: config[key] for key in ("model_type", "tie_word_embeddings") if key in config}
        return super().text({**config["text_config"], **own})

    def held(self) -> tuple[str, ...]:
        return ()

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        raise ValueError("It holds a model of pictures too. Use qwen3_5 for a language model alone.")

    def unused(self, names: Collection[str]) -> set[str]:
        """What sees pictures, besides."""
        return super().unused(names) | {name for name in names if name.startswith(("model.visual.", "visual."))}
