"""RWKV-7 as its authors save it, and the small models of theirs that learn to reverse digits."""

from collections.abc import Collection
from typing import Any

from lavagna.checkpoints.format import Config, Format
from lavagna.checkpoints.formats.rwkv_file import (
    Part,
    RwkvFile,
    Shapes,
    channel_mix,
    depth_of,
    first_layer,
    norm,
    refuse_tied,
    sizes,
)
from lavagna.checkpoints.rules import Rule, same
from lavagna.checkpoints.weights import Weights
from lavagna.models import ModelConfig

# Our names of the maps of low rank, and the letter of theirs.
ADAPTERS = {"decay": "w", "rate": "a", "gate": "g"}


class Rwkv7(RwkvFile):
    """RWKV-7 in a file of RWKV-LM. The first block's `v0`, `v1` and `v2` may be there or not; no one reads them."""

    layer = "rwkv7"
    blends = "x_"
    readers = "k"

    def options(self, shapes: Shapes) -> dict[str, Any]:
        return _options(shapes, "blocks.0.att", "blocks.1.att")

    def time_mix(self, part: Part, layer: Any, index: int) -> list[Rule]:
        return _time_mix(part, layer, residual=index > 0)

    def unused(self, names: Collection[str]) -> set[str]:
        return {f"blocks.0.att.v{each}" for each in range(3)} & set(names)


class Rwkv7Rosa(Format):
    """RWKV-7 in a file of RWKV-LM's experiments with ROSA, a branch beside the time mix, where that branch is off.

    Blocks are counted from 1. What a branch that is off leaves is a bias beside the time mix, `rosa1.o.bias`, which is
    our `out.bias`. No norm stands behind the embedding.
    """

    name = "rwkv7_rosa"
    file = "model.pth"

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        return "e.weight" in names and any(name.startswith("rwkv1.") for name in names)

    def model_config(self, config: Config, shapes: Shapes) -> ModelConfig:
        rows, width = sizes(shapes, "e.weight", 2)
        return ModelConfig(
            layer="rwkv7",
            d_model=width,
            depth=depth_of(shapes, r"rwkv(\d+)\."),
            vocab_size=rows,
            tie_embeddings=False,
            embedding_norm=False,
            head_bias=True,
            block={"mlp_width": sizes(shapes, "ffn1.key.weight", 2)[0]},
            options=_options(shapes, "rwkv1", "rwkv2") | {"out_bias": True},
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        layer = first_layer(model_config)
        rules = [same("embedding.weight", "e.weight"), *norm("norm", "lno"), *norm("head", "o")]
        for index in range(model_config.depth):
            block, number = f"blocks.{index}", index + 1
            rules += norm(f"{block}.mixer_norm", f"ln{number}a") + norm(f"{block}.mlp_norm", f"ln{number}b")
            att, ffn = Part(f"{block}.mixer", f"rwkv{number}", {}), Part(f"{block}.mlp", f"ffn{number}", {})
            rules += _time_mix(att, layer, residual=index > 0)
            rules += [same(f"{block}.mixer.out.bias", f"rosa{number}.o.bias")]
            rules += channel_mix(ffn, model_config.d_model, "x_", "k")
        return rules

    def faults(self, weights: Weights) -> list[str]:
        on = [name for name in weights.entries if name.endswith(".rosa_qkv.emb") and weights.take(name).any()]
        return [f"Its {name} is not zero: that branch of ROSA is on, which is not read." for name in on]

    def unused(self, names: Collection[str]) -> set[str]:
        off = {name for name in names if name.startswith("rosa") and not name.endswith(".o.bias")}
        off |= {name for name in names if name.startswith("ln") and name.split(".")[0].endswith("c")}
        return off | ({f"rwkv1.v{each}" for each in range(3)} & set(names))

    def held(self) -> tuple[str, ...]:
        return ("rwkv7",)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        refuse_tied(model_config)
        return {}


def _options(shapes: Shapes, first: str, second: str) -> dict[str, Any]:
    heads, size = sizes(shapes, f"{first}.r_k", 2)
    options = {f"{ours}_rank": sizes(shapes, f"{first}.{theirs}1", 2)[1] for ours, theirs in ADAPTERS.items()}
    # A model of one block has no value to mix in.
    rank = {"value_rank": sizes(shapes, f"{second}.v1", 2)[1]} if f"{second}.v1" in shapes else {}
    return {"heads": heads, "head_dim": size} | options | rank


def _time_mix(part: Part, layer: Any, *, residual: bool) -> list[Rule]:
    heads, size = layer.heads
    adapters = ADAPTERS | ({"residual": "v"} if residual else {})
    rules = [part.vector(f"shift.{reader}", f"x_{reader}", (layer.d_model,)) for reader in "rwkvag"]
    for ours, theirs in adapters.items():
        rules += part.adapter(ours, f"{theirs}1", f"{theirs}2")
    vectors = ["w0", "a0", "k_k", "k_a", *(["v0"] if residual else [])]
    return [
        *rules,
        *(part.vector(each, each, (heads * size,)) for each in vectors),
        part.vector("r_k", "r_k", (heads, size), (heads, size)),
        *part.matrices(key="key", value="value", receptance="receptance", out="output"),
        *norm(f"{part.ours}.norm", f"{part.theirs}.ln_x"),
    ]
