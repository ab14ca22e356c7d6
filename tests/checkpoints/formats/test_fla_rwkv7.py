"""flash-linear-attention's RWKV-7: the logits of its definition, with its names, in float64."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

import lavagna as lv
from checkpoints.formats.comparison import damages, round_trip_is_exact, same_logits
from lavagna.checkpoints import formats
from lavagna.checkpoints.plan import plan

CONFIG = {
    "model_type": "rwkv7",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "num_heads": 4,
    "decay_low_rank_dim": 5,
    "a_low_rank_dim": 6,
    "v_low_rank_dim": 4,
    "gate_low_rank_dim": 7,
    "hidden_act": "sqrelu",
    "norm_first": True,
    "norm_bias": True,
    "norm_eps": 1e-4,
    "value_dim": [32, 32, 32],
    "attn": None,
    "tie_word_embeddings": False,
}
VARIANTS = {"plain": {}, "no first norm": {"norm_first": False, "tie_word_embeddings": True, "value_dim": None}}


def shapes(config):
    d, hidden, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    ranks = {one: config[f"{name}_low_rank_dim"] for one, name in zip("wavg", ("decay", "a", "v", "gate"), strict=True)}
    made = {"model.embeddings.weight": (rows, d), "model.norm.weight": (d,), "model.norm.bias": (d,)}
    if not config["tie_word_embeddings"]:
        made["lm_head.weight"] = (rows, d)
    for i in range(config["num_hidden_layers"]):
        norms = ["attn_norm", "ffn_norm", "attn.g_norm"] + (["pre_norm"] if i == 0 and config["norm_first"] else [])
        block = {f"{name}.{kind}": (d,) for name in norms for kind in ("weight", "bias")}
        block |= {f"attn.x_{one}": (1, 1, d) for one in "rwkvag"} | {"attn.k_k": (d,), "attn.k_a": (d,)}
        block |= {"attn.r_k": (config["num_heads"], config["head_dim"]), "ffn.x_k": (d,)}
        block |= {f"attn.{one}_proj.weight": (d, d) for one in "rkvo"}
        for one, rank in ranks.items():
            if one != "v" or i > 0:
                block |= {f"attn.{one}_lora.lora.0.weight": (rank, d), f"attn.{one}_lora.lora.2.weight": (d, rank)}
                block |= {} if one == "g" else {f"attn.{one}_lora.lora.2.bias": (d,)}
        block |= {"ffn.key.weight": (hidden, d), "ffn.value.weight": (d, hidden)}
        made |= {f"model.layers.{i}.{name}": shape for name, shape in block.items()}
    return made


def numbers(config):
    def of(name, shape):
        scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
        return scale * torch.randn(shape, dtype=torch.float64) * (0.3 if "norm" in name else 1) + ("norm.w" in name)

    return {name: of(name, shape) for name, shape in shapes(config).items()}


def layer_norm(x, w, name, eps):
    y = x - x.mean(-1, keepdim=True)
    return y / (y.square().mean(-1, keepdim=True) + eps).sqrt() * w[f"{name}.weight"] + w[f"{name}.bias"]


def blended(x, mu):
    before = torch.cat([torch.zeros_like(x[:1]), x[:-1]])
    return x + mu.flatten() * (before - x)


def low_rank(x, w, name, bend=lambda z: z):
    return bend(x @ w[f"{name}.lora.0.weight"].T) @ w[f"{name}.lora.2.weight"].T + w.get(f"{name}.lora.2.bias", 0.0)


def time_mix(config, w, x, first):
    """One block's time mix (t, d), and its value, which the blocks behind the first mix in."""
    heads, size = config["num_heads"], config["head_dim"]
    xs = {one: blended(x, w[f"attn.x_{one}"]) for one in "rwkvag"}
    r, k, v = (xs[one] @ w[f"attn.{one}_proj.weight"].T for one in "rkv")
    decay = torch.exp(-(torch.e**-0.5) * torch.sigmoid(low_rank(xs["w"], w, "attn.w_lora", torch.tanh)))
    if first is not None:
        v = v + (first - v) * torch.sigmoid(low_rank(xs["v"], w, "attn.v_lora"))
    a = torch.sigmoid(low_rank(xs["a"], w, "attn.a_lora"))
    gate = low_rank(xs["g"], w, "attn.g_lora", torch.sigmoid)
    removed = F.normalize((k * w["attn.k_k"]).reshape(-1, heads, size), dim=-1)
    k = k * (1 + (a - 1) * w["attn.k_a"])
    S = torch.zeros(heads, size, size, dtype=x.dtype)
    shared, mixed = [z.reshape(-1, heads, size) for z in (r, decay, k, v, a)], []
    for t, (r_t, w_t, k_t, v_t, a_t) in enumerate(zip(*shared, strict=True)):
        for h in range(heads):
            kk = removed[t, h]
            S[h] = S[h] * w_t[h] - torch.outer(S[h] @ kk, a_t[h] * kk) + torch.outer(v_t[h], k_t[h])
        reads = torch.stack([S[h] @ r_t[h] for h in range(heads)])
        reads = reads - reads.mean(-1, keepdim=True)
        reads = reads / (reads.square().mean(-1, keepdim=True) + size * config["norm_eps"]).sqrt()
        normed = reads.flatten() * w["attn.g_norm.weight"] + w["attn.g_norm.bias"]
        bonus = (r_t * k_t * w["attn.r_k"]).sum(-1, keepdim=True) * v_t
        mixed.append(normed + bonus.flatten())
    return torch.stack(mixed) * gate @ w["attn.o_proj.weight"].T, v


def definition(config, tensors, ids):
    """The logits of one row of ids (t,)."""
    eps, x, first = config["norm_eps"], tensors["model.embeddings.weight"][ids], None
    for i in range(config["num_hidden_layers"]):
        own = f"model.layers.{i}."
        w = {name.removeprefix(own): tensor for name, tensor in tensors.items() if name.startswith(own)}
        x = layer_norm(x, w, "pre_norm", eps) if "pre_norm.weight" in w else x
        y, v = time_mix(config, w, layer_norm(x, w, "attn_norm", eps), first)
        x, first = x + y, v if first is None else first
        y = blended(layer_norm(x, w, "ffn_norm", eps), w["ffn.x_k"])
        x = x + torch.relu(y @ w["ffn.key.weight"].T).square() @ w["ffn.value.weight"].T
    head = tensors.get("lm_head.weight", tensors["model.embeddings.weight"])
    return layer_norm(x, tensors, "model.norm", eps) @ head.T


def written(config, folder, *, joined=False):
    """Write a folder as the package does; what it computes, as a function of ids and a mask."""
    tensors = numbers(config)
    folder.mkdir(exist_ok=True)
    kept = dict(tensors)
    for i in range(config["num_hidden_layers"] if joined else 0):
        own = f"model.layers.{i}.attn.x_"
        kept[f"{own}x"] = torch.cat([kept.pop(f"{own}{one}").flatten(0, 1) for one in "rwkvag"])
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))

    def theirs(ids, state=None, mask=None):
        logits = torch.zeros(*ids.shape, config["vocab_size"], dtype=torch.float64)
        for row, text in enumerate(ids):
            real = slice(None) if mask is None else mask[row]
            logits[row, real] = definition(config, tensors, text[real])
        return logits, None

    return theirs


@pytest.mark.parametrize("joined", [False, True], ids=["apart", "joined"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_definition(variant, joined, tmp_path):
    theirs = written(CONFIG | VARIANTS[variant], tmp_path, joined=joined)
    # A definition has no state, and so no way to read in pieces that could be wrong.
    same_logits(tmp_path, theirs, length=15, tolerance=1e-9, steps=False, cut=False, padding=False)
    round_trip_is_exact(tmp_path)
    assert plan(tmp_path).format == ("fla_rwkv7_joined" if joined else "fla_rwkv7")


def test_a_map_for_the_value_of_the_first_block_is_kept_and_not_read(tmp_path):
    theirs = written(CONFIG, tmp_path)
    kept = {name: plan(tmp_path).weights.take(name) for name in plan(tmp_path).weights.entries}
    more = {name.replace("layers.1", "layers.0"): x.clone() for name, x in kept.items() if ".1.attn.v_lora." in name}
    save_file(kept | more, tmp_path / "model.safetensors")
    same_logits(tmp_path, theirs, length=9, tolerance=1e-9, steps=False, cut=False, padding=False)
    round_trip_is_exact(tmp_path)


def test_damages_are_named(tmp_path):
    written(CONFIG, tmp_path / "whole")
    damages(tmp_path / "whole", "fla_rwkv7", tmp_path)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_config_that_describes_a_model_describes_it_again(variant, tmp_path):
    written(CONFIG | VARIANTS[variant], tmp_path)
    made, format = plan(tmp_path), formats.of_name("fla_rwkv7")
    again = format.foreign_config(made.model.config)
    assert (
        json.loads(json.dumps(again))
        == again
        == CONFIG
        | VARIANTS[variant]
        | {
            "architectures": ["RWKV7ForCausalLM"],
            "value_dim": [32, 32, 32],
        }
    )
    assert format.model_config(again, made.weights.shapes) == made.model.config


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"norm_bias": False}, "norm_bias is False"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"value_dim": [32, 64, 32]}, r"value_dim is \[32, 64, 32\]"),
        ({"attn": {"layers": [0]}}, "attn is"),
        ({"head_dim": 7}, "head_dim is 7, which does not divide hidden_size 32"),
        ({"v_low_rank_dim": 9}, r"v_lora.lora.0.weight is \(4, 32\) where the configuration wants \(9, 32\)"),
    ],
)
def test_what_no_layer_of_ours_computes_is_refused_by_name(changed, said, tmp_path):
    written(CONFIG, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changed))
    with pytest.raises(ValueError, match=said):
        lv.load(tmp_path)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"options": {"out_bias": True}}, "no out_bias"),
        ({"head_bias": True}, "head_bias"),
        ({"norm_eps": 1e-3}, "norm_eps 32 times its own"),
        ({"block": {"mlp": "swiglu"}}, "RWKV-7's channel mix"),
    ],
)
def test_what_their_format_cannot_hold_is_refused(changed, said):
    config = lv.ModelConfig(**{"layer": "rwkv7", "d_model": 32, "depth": 2, "vocab_size": 40} | changed)
    with pytest.raises(ValueError, match=said):
        formats.of_name("fla_rwkv7").foreign_config(config)
