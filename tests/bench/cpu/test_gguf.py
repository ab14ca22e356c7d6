"""Files for llama.cpp: what stands in them, by the names and shapes that it looks for."""

import math
from dataclasses import replace
from struct import calcsize, unpack_from

import pytest
import torch

from lavagna.bench.cpu import gguf, peers

SIZES = {"d_model": 64, "vocab_size": 96, "twin": False}
FRAME = {"token_embd.weight": (96, 64), "output_norm.weight": (64,)}
FRAME_OF_RWKV = {f"{norm}.{kind}": (64,) for norm in ("output_norm", "token_embd_norm") for kind in ("weight", "bias")}
SCAN = {
    "attn_norm.weight": (64,),
    "ssm_conv1d.bias": (128,),
    "ssm_conv1d.weight": (128, 4),
    "ssm_in.weight": (256, 64),
    "ssm_out.weight": (64, 128),
}
BLOCKS = {
    "mamba": SCAN
    | {
        "ssm_a": (128, 16),
        "ssm_d": (128,),
        "ssm_dt.bias": (128,),
        "ssm_dt.weight": (128, 4),
        "ssm_x.weight": (36, 128),
    },
    # Two heads, and keys of 64.
    "mamba2": SCAN
    | {
        "ssm_a": (2, 1),
        "ssm_conv1d.bias": (256,),
        "ssm_conv1d.weight": (256, 4),
        "ssm_d": (2, 1),
        "ssm_dt.bias": (2,),
        "ssm_in.weight": (386, 64),
        "ssm_norm.weight": (128,),
    },
    "rwkv7": {
        **{
            f"{norm}.{kind}": (64,)
            for norm in ("attn_norm", "attn_norm_2", "time_mix_ln")
            for kind in ("weight", "bias")
        },
        **{f"time_mix_{name}.weight": (64,) for name in ("a0", "v0", "w0", "k_a", "k_k", "r_k")},
        **{f"time_mix_{name}1.weight": (32, 64) for name in "avwg"},
        **{f"time_mix_{name}2.weight": (64, 32) for name in "avwg"},
        **{f"time_mix_{name}.weight": (64, 64) for name in ("key", "value", "receptance", "output")},
        "time_mix_lerp_fused.weight": (6, 1, 1, 64),
        "channel_mix_lerp_k.weight": (64,),
        "channel_mix_key.weight": (256, 64),
        "channel_mix_value.weight": (64, 256),
    },
}


def model_of(layer, depth=2, **changed):
    return peers.stirred(replace(peers.configuration(layer, depth, **SIZES), **changed))


@pytest.mark.parametrize("layer", gguf.KINDS)
def test_every_tensor_that_is_looked_for_is_there(layer):
    frame = FRAME | (FRAME_OF_RWKV if layer == "rwkv7" else {})
    wanted = frame | {f"blk.{n}.{name}": shape for n in range(2) for name, shape in BLOCKS[layer].items()}
    _, tensors = gguf.contents(model_of(layer))
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == wanted
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_sizes_are_said_of_a_model_of_one_block_too():
    values, tensors = gguf.contents(model_of("rwkv7", 1, tie_embeddings=False))
    assert tensors["output.weight"].shape == (96, 64)
    ranks = [key for key in values if key.endswith("_lora_rank")]
    assert len(ranks) == 4 and all(values[key] == 32 for key in ranks)
    assert values["rwkv7.block_count"] == 1 and values["rwkv7.wkv.head_size"] == 64


def read(file):
    """Values and tensors of a file, by the format's own description."""
    data, place = file.read_bytes(), 4

    def take(letters):
        nonlocal place
        found = unpack_from(f"<{letters}", data, place)
        place += calcsize(f"<{letters}")
        return found

    def text():
        return take(f"{take('Q')[0]}s")[0].decode()

    assert data[:4] == b"GGUF"
    version, count, pairs = take("IQQ")
    values = {}
    for _ in range(pairs):
        key, (kind,) = text(), take("I")
        values[key] = text() if kind == 8 else take({4: "I", 6: "f"}[kind])[0]
    told = []
    for _ in range(count):
        name, (axes,) = text(), take("I")
        told.append((name, take(f"{axes}Q")[::-1], *take("IQ")))
    assert version == 3 and {kind for _, _, kind, _ in told} == {0}
    start = -(-place // 32) * 32
    assert all(place % 32 == 0 for *_, place in told) and len(data) % 32 == 0
    made = {
        name: torch.frombuffer(bytearray(data), dtype=torch.float32, offset=start + place, count=math.prod(shape))
        for name, shape, _, place in told
    }
    return values, {name: made[name].reshape(shape) for name, shape, *_ in told}


@pytest.mark.parametrize("layer", gguf.KINDS)
def test_a_file_holds_what_was_to_be_written(layer, tmp_path):
    model = model_of(layer).bfloat16()
    gguf.write(model, tmp_path / "model.gguf")
    values, tensors = read(tmp_path / "model.gguf")
    wanted, numbers = gguf.contents(model)
    assert values == pytest.approx(wanted) and tensors.keys() == numbers.keys()
    assert all(torch.equal(tensors[name], numbers[name]) for name in numbers)
