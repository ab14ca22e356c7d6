"""Random checkpoints of every version of RWKV, by the tables of names and shapes that RWKV-LM's own files have."""

import random

import torch

SIZES = {"vocab": 50, "width": 32, "depth": 2, "heads": 4, "hidden": 96}
VERSIONS = ("4", "5.0", "5.1", "5.2", "6", "7")


def tensors(
    version, *, vocab, width, depth, heads, hidden, mix_rank=6, decay_rank=5, learned_state=False, first_v=True
):
    """The tensors of a random model, in no order. What is near zero in a new model is not, so that it counts."""
    found = {
        "emb.weight": torch.randn(vocab, width),
        "head.weight": torch.randn(vocab, width) * width**-0.5,
        **_norm("ln_out", width),
        **_norm("blocks.0.ln0", width),
    }
    sizes = {"width": width, "heads": heads, "decay_rank": decay_rank}
    for index in range(depth):
        block = f"blocks.{index}"
        att = {
            "4": lambda: _att4(width),
            "5": lambda: _att5(version, width, heads),
            "6": lambda: _att6(**sizes, mix_rank=mix_rank, learned_state=learned_state),
            "7": lambda: _att7(**sizes, residual=first_v or index > 0),  # noqa: B023
        }[version[0]]()
        found |= _norm(f"{block}.ln1", width) | _norm(f"{block}.ln2", width)
        found |= {f"{block}.att.{name}": tensor for name, tensor in att.items()}
        found |= {f"{block}.ffn.{name}": tensor for name, tensor in _ffn(version, width, hidden).items()}
    names = list(found)
    random.Random(0).shuffle(names)
    return {name: found[name].contiguous() for name in names}


def write(file, version, *, flat=False, **changes):
    """Write a random file of a version; its tensors. `flat` leaves out axes of one, as some files do."""
    made = tensors(version, **{**SIZES, **changes})
    if flat:
        made = {name: tensor.squeeze() for name, tensor in made.items()}
    torch.save(made, file)
    return made


def _matrix(rows, columns):
    return torch.randn(rows, columns) * columns**-0.5


def _mix(width):
    return torch.rand(1, 1, width)


def _norm(name, width):
    return {f"{name}.weight": 1 + 0.2 * torch.randn(width), f"{name}.bias": 0.2 * torch.randn(width)}


def _linear(names, width):
    return {f"{name}.weight": 1.5 * _matrix(width, width) for name in names}


def _att4(width):
    return {
        "time_decay": torch.empty(width).uniform_(-5, 2),
        "time_first": torch.randn(width),
        **{f"time_mix_{reader}": _mix(width) for reader in "kvr"},
        **_linear(("key", "value", "receptance", "output"), width),
    }


def _att5(version, width, heads):
    shape = {"5.0": (heads,), "5.1": (heads, 1), "5.2": (heads, width // heads)}[version]
    gate = () if version == "5.0" else ("gate",)
    return {
        "time_decay": torch.empty(shape).uniform_(-5, 1),
        "time_first" if version == "5.0" else "time_faaaa": torch.randn(shape),
        **{f"time_mix_{reader}": _mix(width) for reader in ("kvr" if version == "5.0" else "kvrg")},
        **_linear(("key", "value", "receptance", "output", *gate), width),
        **_norm("ln_x", width),
    }


def _att6(*, width, heads, mix_rank, decay_rank, learned_state):
    size = width // heads
    start = {"time_state": torch.randn(heads, size, size)} if learned_state else {}
    return start | {
        **{f"time_maa_{reader}": _mix(width) for reader in "xwkvrg"},
        "time_maa_w1": _matrix(width, 5 * mix_rank),
        "time_maa_w2": 0.5 * torch.randn(5, mix_rank, width) * mix_rank**-0.5,
        "time_decay": torch.empty(1, 1, width).uniform_(-5, 1),
        "time_decay_w1": _matrix(width, decay_rank),
        "time_decay_w2": _matrix(decay_rank, width),
        "time_faaaa": torch.randn(heads, size),
        **_linear(("key", "value", "receptance", "output", "gate"), width),
        **_norm("ln_x", width),
    }


def _att7(*, width, heads, decay_rank, residual):
    ranks = {"w": decay_rank, "a": 4, "v": 3, "g": 7}
    adapters = {}
    for name, rank in ranks.items():
        if name != "v" or residual:
            adapters |= {f"{name}1": _matrix(width, rank), f"{name}2": 2 * _matrix(rank, width)}
            adapters |= {} if name == "g" else {f"{name}0": torch.randn(1, 1, width)}
    return adapters | {
        **{f"x_{reader}": _mix(width) for reader in "rwkvag"},
        "k_k": 1 + 0.3 * torch.randn(1, 1, width),
        "k_a": 1 + 0.3 * torch.randn(1, 1, width),
        "r_k": 0.3 * torch.randn(heads, width // heads),
        **_linear(("key", "value", "receptance", "output"), width),
        **_norm("ln_x", width),
    }


def _ffn(version, width, hidden):
    mixes = {"4": "time_mix_", "5": "time_mix_", "6": "time_maa_", "7": "x_"}[version[0]]
    readers, receptance = ("k", {}) if version == "7" else ("kr", _linear(("receptance",), width))
    return {
        **{f"{mixes}{reader}": _mix(width) for reader in readers},
        "key.weight": 1.5 * _matrix(hidden, width),
        "value.weight": _matrix(width, hidden),
        **receptance,
    }
