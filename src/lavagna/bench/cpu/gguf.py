"""Models of ours in files that llama.cpp reads, to be measured beside it."""

from collections.abc import Callable
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from lavagna.models import LanguageModel

VERSION, ALIGNMENT = 3, 32
# Types of values and of tensors, as the format numbers them.
STRING, NUMBERS = 8, {int: (4, "I"), float: (6, "f")}
FLOAT32 = 0

Values = dict[str, int | float | str]
Tensors = dict[str, Tensor]


def write(model: LanguageModel, path: Path) -> None:
    """Write a model's weights in float32, without a vocabulary. Raises KeyError where its layer is not in `KINDS`."""
    values, tensors = contents(model)
    with path.open("wb") as file:
        file.write(b"GGUF" + pack("<IQQ", VERSION, len(tensors), len(values)))
        for key, value in values.items():
            file.write(_text(key) + _value(value))
        place = 0
        for name, tensor in tensors.items():
            # Axes are listed from the one along which numbers are neighbors.
            axes = tensor.shape[::-1]
            file.write(_text(name) + pack(f"<I{len(axes)}QIQ", len(axes), *axes, FLOAT32, place))
            place += tensor.nbytes + _gap(tensor.nbytes)
        file.write(bytes(_gap(file.tell())))
        for tensor in tensors.values():
            file.write(tensor.numpy().tobytes() + bytes(_gap(tensor.nbytes)))


def _text(text: str) -> bytes:
    return pack("<Q", len(text)) + text.encode()


def _value(value: int | float | str) -> bytes:
    if isinstance(value, str):
        return pack("<I", STRING) + _text(value)
    kind, letter = NUMBERS[type(value)]
    return pack(f"<I{letter}", kind, value)


def _gap(size: int) -> int:
    """Bytes up to the next place where a tensor may begin."""
    return -size % ALIGNMENT


def contents(model: LanguageModel) -> tuple[Values, Tensors]:
    """What a file says of a model, and its tensors in float32, by the names that llama.cpp has for them."""
    config, architecture = model.config, model.config.layers[0]
    kind = KINDS[architecture]
    said: Values = {
        "vocab_size": config.vocab_rows,
        "context_length": 1 << 20,
        "embedding_length": config.d_model,
        "block_count": config.depth,
        # Wanted, though there is no attention.
        "attention.head_count": 0,
        **kind.sizes(model),
    }
    tensors = {}
    for name, tensor in model.state_dict().items():
        part, _, which = name.partition(".")
        if part in FRAME:
            tensors[f"{FRAME[part]}.{which}"] = tensor
    for index, block in enumerate(model.blocks):
        ours = {name: tensor.float() for name, tensor in block.state_dict().items()}
        tensors |= {f"blk.{index}.{name}": tensor for name, tensor in kind.tensors(ours).items()}
    values: Values = {"general.architecture": architecture, "tokenizer.ggml.model": "none"}
    values |= {f"{architecture}.{key}": value for key, value in said.items()}
    return values, {name: tensor.detach().float().contiguous() for name, tensor in tensors.items()}


FRAME = {"embedding": "token_embd", "embedding_norm": "token_embd_norm", "norm": "output_norm", "head": "output"}


class Kind(NamedTuple):
    """An architecture of llama.cpp: the sizes that it asks of a model, and the tensors of a block made of ours."""

    sizes: Callable[[LanguageModel], Values]
    tensors: Callable[[Tensors], Tensors]


def _mamba_sizes(model: LanguageModel) -> Values:
    layer: Any = model.blocks[0].mixer
    channels, state = layer.A_log.shape
    return _scan_sizes(model, layer.conv, channels, state) | {"ssm.time_step_rank": layer.step.weight.shape[1]}


def _mamba2_sizes(model: LanguageModel) -> Values:
    layer: Any = model.blocks[0].mixer
    more: Values = {"ssm.time_step_rank": layer.values.count, "ssm.group_count": layer.keys.count}
    return _scan_sizes(model, layer.conv, layer.values.width, layer.keys.size) | more


def _scan_sizes(model: LanguageModel, conv: Any, channels: int, state: int) -> Values:
    return {
        "attention.layer_norm_rms_epsilon": model.config.norm_eps,
        "feed_forward_length": 0,
        "ssm.conv_kernel": conv.width,
        "ssm.inner_size": channels,
        "ssm.state_size": state,
    }


def _mamba(ours: Tensors) -> Tensors:
    return _scan(ours) | {
        "ssm_in.weight": torch.cat([ours["mixer.x.weight"], ours["mixer.gate.weight"]]),
        "ssm_x.weight": ours["mixer.sbc.weight"],
        "ssm_dt.weight": ours["mixer.step.weight"],
        "ssm_a": -ours["mixer.A_log"].exp(),
        "ssm_d": ours["mixer.D"],
    }


def _mamba2(ours: Tensors) -> Tensors:
    return _scan(ours) | {
        "ssm_in.weight": torch.cat([ours[f"mixer.{part}.weight"] for part in ("gate", "xbc", "step")]),
        "ssm_norm.weight": ours["mixer.norm.weight"],
        "ssm_a": -ours["mixer.A_log"].exp()[:, None],
        "ssm_d": ours["mixer.D"][:, None],
    }


def _scan(ours: Tensors) -> Tensors:
    return {
        "attn_norm.weight": ours["mixer_norm.weight"],
        "ssm_conv1d.weight": ours["mixer.conv.weight"],
        "ssm_conv1d.bias": ours["mixer.conv.bias"],
        "ssm_dt.bias": ours["mixer.dt_bias"],
        "ssm_out.weight": ours["mixer.out.weight"],
    }


# Our maps of low rank, with what is added to them, by the letters of theirs.
ADAPTERS = {"w": "decay", "a": "rate", "v": "residual", "g": "gate"}


def _rwkv7_sizes(model: LanguageModel) -> Values:
    # The last, as the first has no other's value to mix in.
    layer, mlp = cast(Any, model.blocks[-1].mixer), cast(Any, model.blocks[-1].mlp)
    residual = layer.residual or layer.rate
    ranks = {"decay": layer.decay, "iclr": layer.rate, "value_residual_mix": residual, "gate": layer.gate}
    return {
        "attention.layer_norm_epsilon": model.config.norm_eps,
        "feed_forward_length": mlp.key.weight.shape[0],
        "wkv.head_size": layer.heads.size,
        **{f"attention.{name}_lora_rank": adapter.down.weight.shape[0] for name, adapter in ranks.items()},
    }


def _rwkv7(ours: Tensors) -> Tensors:
    made = {
        "time_mix_lerp_fused.weight": torch.stack([ours[f"mixer.shift.{reader}"] for reader in "rwkvag"])[
            :, None, None
        ],
        "time_mix_r_k.weight": ours["mixer.r_k"].flatten(),
        "time_mix_output.weight": ours["mixer.out.weight"],
        "channel_mix_lerp_k.weight": ours["mlp.shift.k"],
        "channel_mix_key.weight": ours["mlp.key.weight"],
        "channel_mix_value.weight": ours["mlp.value.weight"],
    }
    made |= {f"time_mix_{name}.weight": ours[f"mixer.{name}"] for name in ("k_k", "k_a")}
    made |= {f"time_mix_{name}.weight": ours[f"mixer.{name}.weight"] for name in ("key", "value", "receptance")}
    for theirs, name in {"attn_norm": "mixer_norm", "attn_norm_2": "mlp_norm", "time_mix_ln": "mixer.norm"}.items():
        made |= {f"{theirs}.{which}": ours[f"{name}.{which}"] for which in ("weight", "bias")}
    for letter, name in ADAPTERS.items():
        # A first block has no such map, but they ask for one, as wide as that of the rates.
        name, added = (name, letter) if f"mixer.{name}.down.weight" in ours else ("rate", "a")
        made[f"time_mix_{letter}1.weight"] = ours[f"mixer.{name}.down.weight"]
        made[f"time_mix_{letter}2.weight"] = ours[f"mixer.{name}.up.weight"]
        if letter != "g":
            made[f"time_mix_{letter}0.weight"] = ours[f"mixer.{added}0"]
    return made


KINDS = {
    "mamba": Kind(_mamba_sizes, _mamba),
    "mamba2": Kind(_mamba2_sizes, _mamba2),
    "rwkv7": Kind(_rwkv7_sizes, _rwkv7),
}
