"""What the models of flash-linear-attention share: names, SwiGLU, attention in some of the blocks."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from lavagna.checkpoints.format import Config, Format, around, built, frame_config, refuse_other, vocabulary
from lavagna.checkpoints.formats.decoder import ATTENTION, attention_rules
from lavagna.checkpoints.rules import Rule, same, squeeze, stacked
from lavagna.layers import registry
from lavagna.layers.registry import layer_class
from lavagna.layers.softmax_attention import SoftmaxAttention
from lavagna.models import ModelConfig

EMBEDDING, HEAD = "model.embeddings.weight", "lm_head.weight"
SWISH = ("swish", "silu")
# What the first versions called it.
OLD_KEYS = {"num_attention_heads": "num_heads", "rms_norm_eps": "norm_eps"}


class FLA(Format):
    """A model of flash-linear-attention: RMS norms, a mixer called `attn`, a SwiGLU, plain attention in some blocks.

    A subclass names the model type and the layer of ours, and gives the layer's options and tensors. `packed`: files
    from before 2025, whose `gate_proj` holds `up_proj` behind it.
    """

    layer: ClassVar[str]
    packed: ClassVar[bool] = False
    tied = (EMBEDDING, HEAD)

    @abstractmethod
    def mixer_options(self, config: Config) -> dict[str, Any]:
        """The options of the layer."""

    @abstractmethod
    def mixer_config(self, layer: Any, options: Mapping[str, Any]) -> dict[str, Any]:
        """The other way round: what their config says of a layer of ours. Raises ValueError where it can't."""

    @abstractmethod
    def mixer_rules(self, ours: str, theirs: str, layer: Any, config: Config) -> list[Rule]:
        """The tensors of a mixer."""

    @property
    def model_type(self) -> str:
        """What their config calls it."""
        return self.name.removesuffix("_packed")

    def recognizes(self, config: Config, names: Collection[str]) -> bool:
        one_matrix = not any(name.endswith(".mlp.up_proj.weight") for name in names)
        return (
            config.get("model_type") == self.model_type and "model.norm.weight" in names and one_matrix == self.packed
        )

    def model_config(self, config: Config, shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
        self._check(config)
        config = {OLD_KEYS.get(key, key): value for key, value in config.items()}
        attended = _attended(config)
        layers = tuple(ATTENTION if i in attended else self.layer for i in range(config["num_hidden_layers"]))
        options = {self.layer: self.mixer_options(config), ATTENTION: _attention_options(config)}
        return ModelConfig(
            layer=layers,
            d_model=config["hidden_size"],
            depth=len(layers),
            tie_embeddings=config.get("tie_word_embeddings", False),
            norm_eps=config.get("norm_eps", 1e-6),
            options={name: options[name] for name in dict.fromkeys(layers)},
            block={"norm": "rms", "mlp": "swiglu", "mlp_width": _mlp_width(config, shapes)},
            **vocabulary(config["vocab_size"], next(shapes[name][0] for name in (EMBEDDING, HEAD) if name in shapes)),
        )

    def rules(self, config: Config, model_config: ModelConfig) -> list[Rule]:
        mixers: dict[str, Any] = {
            name: built(model_config, layer_class(name)) for name in dict.fromkeys(model_config.layers)
        }
        widths = {name: around(model_config, name).mlp_width for name in mixers}
        rules = [same("embedding.weight", EMBEDDING), same("norm.weight", "model.norm.weight")]
        if not model_config.tie_embeddings:
            rules.append(same("head.weight", HEAD))
        for index, name in enumerate(model_config.layers):
            ours, theirs, width = f"blocks.{index}", f"model.layers.{index}", widths[name]
            parts = ["gate_proj"] if self.packed else ["gate_proj", "up_proj"]
            rules += [
                same(f"{ours}.mixer_norm.weight", f"{theirs}.attn_norm.weight"),
                same(f"{ours}.mlp_norm.weight", f"{theirs}.mlp_norm.weight"),
                side_by_side(f"{ours}.mlp.gate_up", f"{theirs}.mlp", parts, [2 * width // len(parts)] * len(parts)),
                same(f"{ours}.mlp.down.weight", f"{theirs}.mlp.down_proj.weight"),
            ]
            mixer = f"{ours}.mixer", f"{theirs}.attn", mixers[name]
            rules += attention_rules(*mixer) if name == ATTENTION else self.mixer_rules(*mixer, config)
        return rules

    def held(self) -> tuple[str, ...]:
        return (self.layer, ATTENTION)

    def foreign_config(self, model_config: ModelConfig) -> dict[str, Any]:
        names = set(model_config.layers)
        if self.layer not in names:
            raise ValueError(f"It holds {ATTENTION} only beside {self.layer}, of which this model has none.")
        blocks = {name: around(model_config, name) for name in sorted(names)}
        if len(set(blocks.values())) > 1 or next(iter(blocks.values()))[:3] != ("rms", "pre", "swiglu"):
            found = "; ".join(f"those of {name} have {block}" for name, block in blocks.items())
            raise ValueError(f"{self.name} has RMS norms before and a SwiGLU in all blocks, of one width; {found}.")
        if model_config.embedding_scale != 1 or model_config.logit_cap or model_config.head_bias:
            raise ValueError(f"{self.name} has no embedding_scale, logit_cap or head_bias.")
        options = {name: registry.options(name) | model_config.layer_options(name) for name in names}
        if options[self.layer]["norm_eps"] != model_config.norm_eps:
            raise ValueError(f"{self.name} has one norm_eps, but the model's and its mixers' differ.")
        config = {
            "model_type": self.model_type,
            **frame_config(model_config),
            "intermediate_size": blocks[self.layer].mlp_width,
            "hidden_act": "swish",
            "norm_eps": model_config.norm_eps,
            "attn": None,
        }
        if ATTENTION in names:
            config["attn"] = _attention_config(model_config, options[ATTENTION])
        return config | self.mixer_config(built(model_config, layer_class(self.layer)), options[self.layer])

    def _check(self, config: Config) -> None:
        """Raises ValueError on what changes logits and is in no published checkpoint."""
        refuse_other(config, "hidden_act", *SWISH)
        refuse_other(config, "attnres_block_size", None)
        for old in ("use_rope", "use_elu"):
            refuse_other(config, old, False, None)


def _mlp_width(config: Config, shapes: Mapping[str, tuple[int, ...]]) -> int:
    """What the config says; else what the first block has, which is two thirds of `hidden_ratio`, in steps of 256."""
    if config.get("intermediate_size") is not None:
        return config["intermediate_size"]
    paper = -(-int(config["hidden_size"] * (config.get("hidden_ratio") or 4) * 2 / 3) // 256) * 256
    return shapes.get("model.layers.0.mlp.down_proj.weight", (0, paper))[1]


def side_by_side(ours: str, theirs: str, parts: Sequence[str], sizes: Sequence[int], kind: str = "weight") -> Rule:
    """One matrix of ours is the rows of several of theirs."""
    return stacked(f"{ours}.{kind}", [f"{theirs}.{part}.{kind}" for part in parts], sizes)


def qkv_rules(ours: str, theirs: str, sizes: Sequence[int], *, conv: bool) -> list[Rule]:
    """Queries, keys and values, and the filters of their convolutions, which torch gives an axis of one."""
    rules = [side_by_side(f"{ours}.qkv.linear", theirs, ["q_proj", "k_proj", "v_proj"], sizes)]
    filters = side_by_side(f"{ours}.qkv.conv", theirs, ["q_conv1d", "k_conv1d", "v_conv1d"], sizes)
    return [*rules, filters.then(squeeze(1))] if conv else rules


def renamed(ours: str, theirs: str, names: Mapping[str, str]) -> list[Rule]:
    """Tensors that differ in their names alone, ours to theirs."""
    return [same(f"{ours}.{one}", f"{theirs}.{other}") for one, other in names.items()]


def theirs_of(option: str, names: Mapping[Any, str], ours: str) -> Any:
    """Their word for an option's value of ours. Raises ValueError where they have none."""
    for word, mine in names.items():
        if mine == ours:
            return word
    raise ValueError(f"{option} is {ours!r}, but the format has {', '.join(dict.fromkeys(names.values()))}.")


def _attended(config: Config) -> set[int]:
    """The blocks that have attention."""
    return {index for given in _specifications(config) for index in given["layers"]}


def _specifications(config: Config) -> list[Mapping[str, Any]]:
    given = config.get("attn")
    return [] if given is None else [given] if isinstance(given, Mapping) else list(given)


def _attention_options(config: Config) -> dict[str, Any]:
    made = [
        {
            "heads": given["num_heads"],
            "kv_heads": given.get("num_kv_heads") or given["num_heads"],
            "rotary_base": given.get("rope_theta", 10000.0),
            "window": given.get("window_size"),
            "bias": given.get("qkv_bias", False),
        }
        for given in _specifications(config)
    ]
    if any(one != made[0] for one in made):
        raise ValueError(
            "attn describes attention of several kinds, but all attention of a model has the same options."
        )
    return made[0] if made else {}


def _attention_config(model_config: ModelConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    layer = built(model_config, SoftmaxAttention)
    plain = {"rotary_fraction": 1.0, "qk_norm": None, "gate": False, "out_bias": False}
    for option, wanted in plain.items():
        if options[option] != wanted:
            raise ValueError(f"{ATTENTION} has {option}={options[option]!r}, which their attention lacks.")
    if layer.heads.width != model_config.d_model:
        raise ValueError(f"{ATTENTION} has heads of another width than d_model together.")
    return {
        "layers": [index for index, name in enumerate(model_config.layers) if name == ATTENTION],
        "num_heads": layer.heads.count,
        "num_kv_heads": layer.keys.count,
        "qkv_bias": options["bias"],
        "window_size": options["window"],
        "rope_theta": options["rotary_base"],
    }
