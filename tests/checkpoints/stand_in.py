"""A foreign format for tests of what all formats share: a linear attention whose projections stand apart."""

from lavagna.checkpoints.format import Format, vocabulary
from lavagna.checkpoints.rules import same, stacked
from lavagna.models import ModelConfig


class StandIn(Format):
    """Queries, keys and values apart, gate and up apart, the embedding tied; `rope.table` is of no use."""

    name = "stand_in"
    tied = ("embed", "head")

    def recognizes(self, config, names):
        return config.get("model_type") == self.name

    def model_config(self, config, shapes):
        return ModelConfig(
            layer="linear_attention",
            options={"heads": 1},
            d_model=config["width"],
            depth=config["layers"],
            block={"mlp_width": config["hidden"]},
            tie_embeddings=config.get("tie", True),
            **vocabulary(config["vocab"], shapes["embed"][0]),
        )

    def rules(self, config, model_config):
        width, hidden = model_config.d_model, model_config.block_choices("linear_attention")["mlp_width"]
        rules = [same("embedding.weight", "embed"), same("norm.weight", "last_norm")]
        rules += [] if model_config.tie_embeddings else [same("head.weight", "head")]
        for n in range(model_config.depth):
            ours, theirs = f"blocks.{n}", f"layer{n}"
            rules += [
                stacked(f"{ours}.mixer.qkv.weight", [f"{theirs}.{x}" for x in "qkv"], [width] * 3),
                stacked(f"{ours}.mlp.gate_up.weight", [f"{theirs}.gate", f"{theirs}.up"], [hidden] * 2),
                same(f"{ours}.mlp.down.weight", f"{theirs}.down"),
                same(f"{ours}.mixer.out.weight", f"{theirs}.out"),
                same(f"{ours}.mixer.norm.weight", f"{theirs}.inner_norm"),
                same(f"{ours}.mixer_norm.weight", f"{theirs}.norm1"),
                same(f"{ours}.mlp_norm.weight", f"{theirs}.norm2"),
            ]
        return rules

    def foreign_config(self, model_config):
        return {
            "model_type": self.name,
            "width": model_config.d_model,
            "layers": model_config.depth,
            "hidden": model_config.block_choices("linear_attention")["mlp_width"],
            "vocab": model_config.vocab_size,
            "tie": model_config.tie_embeddings,
        }

    def unused(self, names):
        return {"rope.table"} & set(names)


def config(width, depth, vocab=64, **changed):
    return {"model_type": "stand_in", "width": width, "layers": depth, "hidden": 2 * width, "vocab": vocab} | changed


def shapes(width, depth, vocab=64):
    """The shape of every tensor of such a checkpoint."""
    found = {"embed": (vocab, width), "last_norm": (width,)}
    square = dict.fromkeys(["q", "k", "v", "out"], (width, width))
    layer = square | {"gate": (2 * width, width), "up": (2 * width, width), "down": (width, 2 * width)}
    layer |= dict.fromkeys(["norm1", "norm2"], (width,)) | {"inner_norm": (width,)}
    return found | {f"layer{n}.{name}": shape for n in range(depth) for name, shape in layer.items()}
