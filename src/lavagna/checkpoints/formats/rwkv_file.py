"""RWKV as its authors' RWKV-LM saves it: one file of tensors that says nothing else. What versions 4 to 7 share."""

import re
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from lavagna.checkpoints.format import Config, Format, built
from lavagna.checkpoints.rules import Rule, reshape, same, transpose
from lavagna.layers import registry
from lavagna.models import ModelConfig

EMBEDDING, HEAD, HIDDEN = "emb.weight", "head.weight", "blocks.0.ffn.key.weight"
# What sets a version apart from the ones before it, the newest first.
MARKS = {"rwkv7": ".att.x_", "rwkv6": ".att.time_maa_", "rwkv5": ".att.ln_x.", "rwkv4": ".att.time_mix_"}
# In a config that stands for a file: the shapes of what is no weight matrix, by name within a block.
SHAPES = "shapes"
Shapes = Mapping[str, tuple[int, ...]]


class Part(NamedTuple):
    """A part of a block: our name and theirs, and the shapes by which a file spells vectors, by their names in it."""

    ours: str
    theirs: str
    shapes: Mapping[str, Sequence[int]]

    def vector(self, ours: str, theirs: str, shape: Sequence[int], published: Sequence[int] | None = None) -> Rule:
        """A parameter of `shape`, which new files write as `published`, (1, 1, c) unless told, and this one may not."""
        usual = (1, 1, *shape) if published is None else tuple(published)
        found = self.shapes.get(theirs, usual)
        # Any other difference than axes of one is a fault, to be found against the published shape.
        wanted = found if [n for n in found if n > 1] == [n for n in usual if n > 1] else usual
        return same(f"{self.ours}.{ours}", f"{self.theirs}.{theirs}", reshape(tuple(shape), tuple(wanted)))

    def matrices(self, **names: str) -> list[Rule]:
        """Weights of linear maps without a bias, ours by theirs."""
        return [same(f"{self.ours}.{ours}.weight", f"{self.theirs}.{name}.weight") for ours, name in names.items()]

    def adapter(self, ours: str, down: str, up: str) -> list[Rule]:
        """A map of low rank, whose matrices RWKV-LM writes to be multiplied from the right."""
        pairs = {"down.weight": down, "up.weight": up}
        return [
            same(f"{self.ours}.{ours}.{each}", f"{self.theirs}.{name}", transpose()) for each, name in pairs.items()
        ]


class RwkvFile(Format):
    """A version of RWKV in a file of RWKV-LM (`.pth`): every size is read off the tensors.

    `layer` is ours; `blends` is how the names of the channel mix's blends begin, and `readers` what they blend for.
    """

    file = "model.pth"
    layer: ClassVar[str]
    blends: ClassVar[str]
    readers: ClassVar[str] = "kr"

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As our layer's."""
        return self.layer

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        found = (layer for layer, mark in MARKS.items() if any(mark in name for name in names))
        return EMBEDDING in names and next(found, None) == self.layer

    def described(self, config: Config, shapes: Shapes) -> Config:
        """Files of one version differ in the shapes of their vectors: (1, 1, c) or (c), (h, 1) or (h)."""
        found: dict[str, dict[str, list[int]]] = {"att": {}, "ffn": {}}
        for name, shape in shapes.items():
            if (match := re.fullmatch(r"blocks\.\d+\.(att|ffn)\.(\w+)", name)) is not None:
                found[match[1]].setdefault(match[2], list(shape))
        return {SHAPES: found}

    def model_config(self, config: Config, shapes: Shapes) -> ModelConfig:
        deep = [name for name in shapes if ".ffn.s_emb" in name]
        if deep:
            raise ValueError(f"It has {deep[0]}: DeepEmbed, an embedding in each channel mix, is not read.")
        rows, width = sizes(shapes, EMBEDDING, 2)
        return ModelConfig(
            layer=self.layer,
            d_model=width,
            depth=depth_of(shapes, r"blocks\.(\d+)\."),
            vocab_size=rows,
            tie_embeddings=False,
            block={"mlp_width": sizes(shapes, HIDDEN, 2)[0]},
            options=self.options(shapes),
        )

    @abstractmethod
    def options(self, shapes: Shapes) -> dict[str, Any]:
        """The options of our layer that the tensors of a file tell."""

    @abstractmethod
    def time_mix(self, part: Part, layer: Any, index: int) -> list[Rule]:
        """The parameters of our layer, as it is built, in the block `index`."""

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        shapes, width, layer = config.get(SHAPES, {}), model_config.d_model, first_layer(model_config)
        rules = [same("embedding.weight", EMBEDDING), same("head.weight", HEAD)]
        rules += norm("norm", "ln_out") + norm("embedding_norm", "blocks.0.ln0")
        for index in range(model_config.depth):
            block = f"blocks.{index}"
            att = Part(f"{block}.mixer", f"{block}.att", shapes.get("att", {}))
            ffn = Part(f"{block}.mlp", f"{block}.ffn", shapes.get("ffn", {}))
            rules += norm(f"{block}.mixer_norm", f"{block}.ln1") + norm(f"{block}.mlp_norm", f"{block}.ln2")
            rules += self.time_mix(att, layer, index)
            rules += channel_mix(ffn, width, self.blends, self.readers)
        return rules

    def held(self) -> tuple[str, ...]:
        return (self.layer,)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        refuse_tied(model_config)
        return {}


def channel_mix(part: Part, width: int, blends: str, readers: str) -> list[Rule]:
    """The channel mix of a block."""
    rules = [part.vector(f"shift.{reader}", f"{blends}{reader}", (width,)) for reader in readers]
    rules += part.matrices(key="key", value="value")
    return rules + (part.matrices(receptance="receptance") if "r" in readers else [])


def refuse_tied(model_config: ModelConfig) -> None:
    """Raises ValueError where a model has no head of its own, which all files of RWKV-LM hold."""
    if model_config.tie_embeddings:
        raise ValueError("It has a head of its own, but tie_embeddings is True.")


def first_layer(model_config: ModelConfig) -> Any:
    """The first layer of a model, as `built`, of whichever version."""
    return built(model_config, registry.layer_class(model_config.layers[0]))


def norm(ours: str, theirs: str) -> list[Rule]:
    """A norm with a weight and a bias."""
    return [same(f"{ours}.{kind}", f"{theirs}.{kind}") for kind in ("weight", "bias")]


def sizes(shapes: Shapes, name: str, axes: int) -> tuple[int, ...]:
    """The shape of a tensor. Raises KeyError where it is not there, ValueError on another number of axes."""
    if len(shapes[name]) != axes:
        raise ValueError(f"{name} is {shapes[name]}, where {axes} axes are wanted.")
    return shapes[name]


def depth_of(names: Collection[str], pattern: str) -> int:
    """How many blocks there are, whose numbers `pattern` finds in names. A stray number counts as one."""
    return len({match[1] for name in names if (match := re.match(pattern, name))})
