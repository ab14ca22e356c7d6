"""What the hybrids of Hugging Face's transformers have in common: how layers repeat, turn, attend and feed forward."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from lavagna.checkpoints.format import Config, built
from lavagna.checkpoints.rules import Rule, Turn, parted, reorder, same, stacked
from lavagna.layers.gated_delta_net import GatedDeltaNet
from lavagna.layers.softmax_attention import SoftmaxAttention
from lavagna.models import ModelConfig

# Their names of the embedding and the head of a model that stands alone.
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DELTA, ATTENTION = GatedDeltaNet.name, SoftmaxAttention.name
KINDS = {"linear_attention": DELTA, "full_attention": ATTENTION}


def layer_pattern(config: Config) -> tuple[str, ...]:
    """Our names of the layers, as short a pattern as repeats. By default every fourth layer attends to all tokens."""
    depth, every = config["num_hidden_layers"], config.get("full_attention_interval", 4)
    kinds = config.get("layer_types") or [
        "linear_attention" if (index + 1) % every else "full_attention" for index in range(depth)
    ]
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or len(kinds) != depth:
        raise ValueError(f"Its layer_types are {kinds}; {depth} of {' and '.join(KINDS)} are read.")
    return repeating([KINDS[kind] for kind in kinds])


def repeating(names: Sequence[str]) -> tuple[str, ...]:
    """The shortest pattern that repeats to these names, the last time perhaps cut short.

    >>> repeating(["gla", "gla", "softmax_attention", "gla", "gla"])
    ('gla', 'gla', 'softmax_attention')
    """
    for length in range(1, len(names) + 1):
        if all(name == names[index % length] for index, name in enumerate(names)):
            return tuple(names[:length])
    return tuple(names)


def both_kinds(config: ModelConfig, kinds: Mapping[str, str]) -> list[str]:
    """Their names of a model's layers. Raises ValueError where one of the kinds, theirs to ours, has no layer."""
    names = {ours: theirs for theirs, ours in kinds.items()}
    if missing := names.keys() - set(config.layers):
        raise ValueError(
            f"It holds layers of {' and '.join(names)}, some of both, but this model has no {missing.pop()}."
        )
    return [names[layer] for layer in config.layers]


def by_layer(names: Collection[str], **options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Options by layer, of those layers only that there are."""
    return {name: given for name, given in options.items() if name in names}


def rotary_options(config: Config, head_dim: int, *, fraction: float = 1.0) -> dict[str, Any]:
    """How queries and keys turn, written as of transformers 5 (`rope_parameters`) or as before it.

    A `rope_theta` of null turns nothing. Raises ValueError on positions that are stretched, as by YaRN.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    # A text without pictures has one position a token, whatever the sections of mrope.
    if kind not in ("default", "mrope"):
        raise ValueError(f"Its rotary positions are of the kind {kind!r}; read is 'default'.")
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    if base is None:
        return {"rotary_fraction": 0.0}
    share = rope.get("partial_rotary_factor", config.get("partial_rotary_factor", fraction))
    return {"rotary_base": base, "rotary_fraction": int(head_dim * share) / head_dim}


def attention_config(layer: SoftmaxAttention) -> dict[str, Any]:
    """Their keys of an attention layer of ours, which sees all tokens before its own."""
    if layer.window is not None:
        raise ValueError(f"Its attention sees all tokens, and this model's the last {layer.window}.")
    return attention_sizes(layer) | {"head_dim": layer.heads.size}


def attention_sizes(layer: SoftmaxAttention) -> dict[str, Any]:
    """The same, whatever the layer sees; a head is as wide as an even share of the model."""
    theta = {"rope_type": "default", "rope_theta": layer.rotary_base if layer.turned else None}
    share = {"partial_rotary_factor": layer.turned / layer.heads.size} if layer.turned else {}
    return {
        "num_attention_heads": layer.heads.count,
        "num_key_value_heads": layer.keys.count,
        "attention_bias": layer.qkv.bias is not None,
        "rope_parameters": theta | share,
    }


def delta_config(layer: GatedDeltaNet) -> dict[str, Any]:
    """Their keys of a gated delta layer of ours, which convolves."""
    if layer.qkv.conv is None:
        raise ValueError("Its gated delta layers have convolutions, and this model's have none.")
    return {
        "linear_num_key_heads": layer.keys.count,
        "linear_key_head_dim": layer.keys.size,
        "linear_num_value_heads": layer.values.count,
        "linear_value_head_dim": layer.values.size,
        "linear_conv_kernel_dim": layer.qkv.conv.width,
    }


def frame(config: ModelConfig, root: str, *, norm: str = "norm") -> list[Rule]:
    """What stands around the blocks."""
    rules = [same("embedding.weight", f"{root}.embed_tokens.weight"), same("norm.weight", f"{root}.{norm}.weight")]
    return rules if config.tie_embeddings else [*rules, same("head.weight", HEAD)]


def mlp_rules(ours: str, theirs: str, width: int, *, kinds: Collection[str] = ("weight",)) -> list[Rule]:
    """A gated feed-forward net."""
    rules = []
    for kind in kinds:
        pair = [f"{theirs}.gate_proj.{kind}", f"{theirs}.up_proj.{kind}"]
        rules += [
            stacked(f"{ours}.gate_up.{kind}", pair, [width, width]),
            same(f"{ours}.down.{kind}", f"{theirs}.down_proj.{kind}"),
        ]
    return rules


def mixer_rules(
    config: ModelConfig,
    name: str,
    ours: str,
    theirs: str,
    delta_rules: Callable[[str, str, GatedDeltaNet], list[Rule]],
) -> list[Rule]:
    """The mixer of a block: attention, or a gated delta layer, of which each format has rules of its own."""
    if name == DELTA:
        return delta_rules(f"{ours}.mixer", f"{theirs}.linear_attn", built(config, GatedDeltaNet))
    return attention_rules(f"{ours}.mixer", f"{theirs}.self_attn", built(config, SoftmaxAttention))


def attention_rules(ours: str, theirs: str, layer: SoftmaxAttention) -> list[Rule]:
    """Attention. Where it is gated, each head's rows of their q_proj are its query's, then its gate's."""
    rules = []
    for kind in ("weight", "bias") if layer.qkv.bias is not None else ("weight",):
        parts = [f"{theirs}.{part}_proj.{kind}" for part in "qkv"]
        if layer.gate is None:
            rules.append(stacked(f"{ours}.qkv.{kind}", parts, layer.sizes))
        else:
            rules.append(Rule((f"{ours}.qkv.{kind}", f"{ours}.gate.{kind}"), tuple(parts), _gated(layer)))
    for kind in ("weight", "bias") if layer.out.bias is not None else ("weight",):
        rules.append(same(f"{ours}.out.{kind}", f"{theirs}.o_proj.{kind}"))
    if layer.q_norm is not None:
        rules += [same(f"{ours}.{part}_norm.weight", f"{theirs}.{part}_norm.weight") for part in "qk"]
    return rules


def _gated(layer: SoftmaxAttention) -> tuple[Turn, ...]:
    queries, keys, values = layer.sizes
    place = torch.arange(2 * queries + keys + values, device="cpu")
    heads = place[: 2 * queries].reshape(layer.heads.count, 2, layer.heads.size)
    order = torch.cat([heads[:, 0].flatten(), place[2 * queries :], heads[:, 1].flatten()])
    together = stacked("", ("q", "k", "v"), [2 * queries, keys, values]).turns
    return (*together, reorder(order), *parted(("qkv", "gate"), "", [sum(layer.sizes), queries]).turns)
