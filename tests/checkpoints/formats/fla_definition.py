"""flash-linear-attention's models by their definition: its names, and plain steps in float64, token after token.

The package itself computes on GPUs alone, so this stands in its place. Nothing here calls anything of ours.
"""

import json
import math

import torch
import torch.nn.functional as F
from safetensors.torch import save_file


def written(config, folder, *, packed=False):
    """Write a folder as the package does, with random numbers in float64; what it computes, as a function."""
    tensors = {name: _numbers(name, shape) for name, shape in shapes(config, packed).items()}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))

    def theirs(ids, state=None, mask=None):
        """Logits of all rows, and as the state the ids so far."""
        past = ids if state is None else torch.cat([state, ids], 1)
        real = torch.ones_like(past, dtype=torch.bool) if mask is None else mask
        logits = torch.zeros(*past.shape, config["vocab_size"], dtype=torch.float64)
        for row in range(len(past)):
            logits[row, real[row]] = model(config, tensors, past[row, real[row]])
        return logits[:, -ids.shape[1] :], past

    return theirs


def _numbers(name, shape):
    if "norm" in name:
        return 1 + 0.2 * torch.randn(shape, dtype=torch.float64)
    if len(shape) == 1:
        return torch.randn(shape, dtype=torch.float64)
    # Wide enough for gates and keys to matter, and for no two heads to be alike.
    return 1.5 * torch.randn(shape, dtype=torch.float64) / shape[-1] ** 0.5


def shapes(config, packed):
    """The shape of every tensor, by the package's names."""
    d, width, rows = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    made = {"model.embeddings.weight": (rows, d), "model.norm.weight": (d,)}
    if not config["tie_word_embeddings"]:
        made["lm_head.weight"] = (rows, d)
    for i in range(config["num_hidden_layers"]):
        mixer = attention_shapes(attention_of(config, i), d) if attention_of(config, i) else mixer_shapes(config)
        block = {"attn_norm.weight": (d,), "mlp_norm.weight": (d,), "mlp.down_proj.weight": (d, width)}
        if packed:
            block["mlp.gate_proj.weight"] = (2 * width, d)
        else:
            block |= {"mlp.gate_proj.weight": (width, d), "mlp.up_proj.weight": (width, d)}
        block |= {f"attn.{name}": shape for name, shape in mixer.items()}
        made |= {f"model.layers.{i}.{name}": shape for name, shape in block.items()}
    return made


def attention_of(config, index):
    """What the config says of the attention of a block, None where it has none."""
    given = config.get("attn")
    return given if given and index in given["layers"] else None


def attention_shapes(given, d):
    heads, pairs = given["num_heads"], given.get("num_kv_heads") or given["num_heads"]
    keys = d // heads * pairs
    made = {"q_proj.weight": (d, d), "k_proj.weight": (keys, d), "v_proj.weight": (keys, d), "o_proj.weight": (d, d)}
    biases = {"q_proj.bias": (d,), "k_proj.bias": (keys,), "v_proj.bias": (keys,)}
    return made | (biases if given.get("qkv_bias") else {})


def heads_of(config):
    """Heads of queries, of keys and of values, and the sizes of keys and values."""
    d, heads = config["hidden_size"], config["num_heads"]
    if config["model_type"] in ("gla", "delta_net", "retnet"):
        sizes = (round(d * config["expand_k"]) // heads, round(d * config["expand_v"]) // heads)
        pairs = config.get("num_kv_heads") or heads
        return heads, pairs, pairs, *sizes
    size = config["head_dim"]
    return heads, heads, config.get("num_v_heads") or heads, size, int(size * config["expand_v"])


def mixer_shapes(config):
    d, kind = config["hidden_size"], config["model_type"]
    heads, pairs, value_heads, k, v = heads_of(config)
    queries, keys, values = heads * k, pairs * k, value_heads * v
    read = heads * v if kind in ("gla", "retnet") else values
    made = {"q_proj.weight": (queries, d), "k_proj.weight": (keys, d), "v_proj.weight": (values, d)}
    made["o_proj.weight"] = (d, read)
    if kind == "retnet":
        gated = config["use_output_gate"]
        made["g_norm_swish_gate.weight" if gated and config["fuse_norm"] else "g_norm.weight"] = (v,)
        return made | ({"g_proj.weight": (read, d)} if gated else {})
    if config["use_short_conv"]:
        widths = {"q": queries, "k": keys, "v": values}
        made |= {f"{one}_conv1d.weight": (width, 1, config["conv_size"]) for one, width in widths.items()}
    if kind == "gla":
        made |= {"gk_proj.0.weight": (16, d), "gk_proj.1.weight": (keys, 16), "gk_proj.1.bias": (keys,)}
        gated = config["use_output_gate"]
        made["g_norm_swish_gate.weight" if gated and config["fuse_norm"] else "g_norm.weight"] = (v,)
        return made | ({"g_proj.weight": (read, d)} if gated else {})
    made |= {"b_proj.weight": (value_heads, d), "o_norm.weight": (v,)}
    if kind == "gated_deltanet":
        made |= {"a_proj.weight": (value_heads, d), "A_log": (value_heads,), "dt_bias": (value_heads,)}
    if kind == "kda":
        made |= {"f_proj.0.weight": (v, d), "f_proj.1.weight": (value_heads * k, v), "A_log": (value_heads,)}
        made |= {"g_proj.0.weight": (v, d), "g_proj.1.weight": (values, v), "g_proj.1.bias": (values,)}
        made["dt_bias"] = (value_heads * k,)
    elif config["use_gate"]:
        made["g_proj.weight"] = (values, d)
    return made


def norm(x, weight, eps):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def model(config, tensors, ids):
    """The logits of one row of ids (t,)."""
    eps, embedding = config["norm_eps"], tensors["model.embeddings.weight"]
    x = embedding[ids]
    for i in range(config["num_hidden_layers"]):
        own = {
            k.removeprefix(f"model.layers.{i}."): v for k, v in tensors.items() if k.startswith(f"model.layers.{i}.")
        }
        w = {name.removeprefix("attn."): tensor for name, tensor in own.items() if name.startswith("attn.")}
        y, attention = norm(x, own["attn_norm.weight"], eps), attention_of(config, i)
        x = x + (attend(attention, w, y) if attention else mixed(config, w, y)) @ w["o_proj.weight"].T
        y = norm(x, own["mlp_norm.weight"], eps)
        up = own.get("mlp.up_proj.weight")
        gate = own["mlp.gate_proj.weight"]
        gate, up = gate.chunk(2) if up is None else (gate, up)
        x = x + (F.silu(y @ gate.T) * (y @ up.T)) @ own["mlp.down_proj.weight"].T
    return norm(x, tensors["model.norm.weight"], eps) @ tensors.get("lm_head.weight", embedding).T


def attend(given, w, x):
    """Causal attention with rotary positions that turn the halves of a head against each other."""
    heads, pairs = given["num_heads"], given.get("num_kv_heads") or given["num_heads"]
    size, window = x.shape[1] // heads, given.get("window_size") or len(x)
    q, k, v = (x @ w[f"{n}_proj.weight"].T + w.get(f"{n}_proj.bias", 0.0) for n in "qkv")
    q, k, v = q.reshape(-1, heads, size), k.reshape(-1, pairs, size), v.reshape(-1, pairs, size)
    reads, base = torch.zeros_like(q), given.get("rope_theta", 10000.0)
    for h in range(heads):
        pair = h // (heads // pairs)
        for t in range(len(x)):
            seen = range(max(0, t - window + 1), t + 1)
            scores = torch.stack([turned(q[t, h], t, base) @ turned(k[s, pair], s, base) for s in seen])
            reads[t, h] = (scores / math.sqrt(size)).softmax(0) @ v[seen.start : seen.stop, pair]
    return reads.flatten(1)


def turned(z, t, base=10000.0):
    """A vector at position t, the first half of its channels turned against the second."""
    half = len(z) // 2
    angles = t * torch.tensor([base ** (-j / half) for j in range(half)], dtype=torch.float64)
    a, b, c, s = z[:half], z[half:], angles.cos(), angles.sin()
    return torch.cat([a * c - b * s, b * c + a * s])


def retained(config, w, x):
    """Retention: each head of the queries fades at a pace of its own."""
    heads, pairs, _, k_size, v_size = heads_of(config)
    q, k, v = (x @ w[f"{name}_proj.weight"].T for name in "qkv")
    q, k, v = q.reshape(-1, heads, k_size), k.reshape(-1, pairs, k_size), v.reshape(-1, pairs, v_size)
    reads = torch.zeros(len(x), heads, v_size, dtype=x.dtype)
    for h in range(heads):
        pair, gamma, S = h // (heads // pairs), 1 - 2.0 ** (-5 - h), torch.zeros(v_size, k_size, dtype=x.dtype)
        for t in range(len(x)):
            S = gamma * S + torch.outer(v[t, pair], turned(k[t, pair], t))
            reads[t, h] = S @ turned(q[t, h], t) / math.sqrt(k_size)
    return reads


def convolved(config, w, x, name, bend):
    """A projection and its convolution, tap by tap, then an activation."""
    y = x @ w[f"{name}_proj.weight"].T
    if config["use_short_conv"]:
        taps, width = w[f"{name}_conv1d.weight"][:, 0], config["conv_size"]
        past = torch.cat([torch.zeros(width - 1, y.shape[1], dtype=y.dtype), y])
        y = sum(past[i : i + len(y)] * taps[:, i] for i in range(width))
    return bend(y)


BENT = {"silu": F.silu, "relu": torch.relu, "elu": lambda z: F.elu(z) + 1, "identity": lambda z: z}


def mixed(config, w, x):
    """A mixer up to its output projection."""
    if config["model_type"] == "retnet":
        return read_out(config, w, x, retained(config, w, x))
    kind, (heads, _, value_heads, k_size, v_size) = config["model_type"], heads_of(config)
    rest = "silu" if kind != "gla" or config["use_short_conv"] else "identity"
    bend = BENT[config.get("qk_activation", rest)]
    q, k = (convolved(config, w, x, name, bend).reshape(len(x), -1, k_size) for name in "qk")
    v = convolved(config, w, x, "v", BENT[rest]).reshape(len(x), -1, v_size)
    alpha, beta = gates(config, w, x, value_heads, k_size)
    if kind == "gla":
        q, k = (BENT[config["feature_map"]](z) if config.get("feature_map") else z for z in (q, k))
    elif config.get("qk_norm") == "sum":
        q, k = q / q.abs().sum(-1, keepdim=True), k / k.abs().sum(-1, keepdim=True)
    else:
        q, k = (z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    count = heads if kind == "gla" else value_heads
    reads = torch.zeros(len(x), count, v_size, dtype=x.dtype)
    for h in range(count):
        query, key, value = (h // (count // z.shape[1]) for z in (q, k, v))
        S = torch.zeros(v_size, k_size, dtype=x.dtype)
        for t in range(len(x)):
            S = S * alpha[t, value]
            found = torch.zeros(v_size, dtype=x.dtype) if kind == "gla" else S @ k[t, key]
            S = S + beta[t, value] * torch.outer(v[t, value] - found, k[t, key])
            reads[t, h] = S @ q[t, query] / math.sqrt(k_size)
    return read_out(config, w, x, reads)


def gates(config, w, x, heads, k_size):
    """What is left of each key channel (t, h, k or 1), and the dose of each write (t, h)."""
    kind, one = config["model_type"], torch.ones(len(x), heads, 1, dtype=torch.float64)
    if kind == "gla":
        low = x @ w["gk_proj.0.weight"].T @ w["gk_proj.1.weight"].T + w["gk_proj.1.bias"]
        log_alpha = torch.log(torch.sigmoid(low)).reshape(len(x), heads, k_size) / 16
        if config.get("clamp_min") is not None:
            log_alpha = log_alpha.clamp_min(config["clamp_min"])
        return log_alpha.exp(), one[..., 0]
    beta = (2 if config["allow_neg_eigval"] else 1) * torch.sigmoid(x @ w["b_proj.weight"].T)
    if kind == "delta_net":
        return one, beta
    low = x @ w["a_proj.weight"].T if kind == "gated_deltanet" else x @ w["f_proj.0.weight"].T @ w["f_proj.1.weight"].T
    low, rate = (low + w["dt_bias"]).reshape(len(x), heads, -1), w["A_log"].exp()[:, None]
    if config.get("lower_bound") is not None:
        return torch.exp(config["lower_bound"] * torch.sigmoid(rate * low)), beta
    return torch.exp(-rate * torch.log1p(torch.exp(low))), beta


def read_out(config, w, x, reads):
    """Each head's read normed and gated."""
    name = next(name for name in ("o_norm.weight", "g_norm.weight", "g_norm_swish_gate.weight") if name in w)
    y = norm(reads, w[name], config["norm_eps"]).flatten(1)
    if config["model_type"] == "kda":
        return y * torch.sigmoid(x @ w["g_proj.0.weight"].T @ w["g_proj.1.weight"].T + w["g_proj.1.bias"])
    if "g_proj.weight" not in w:
        return y
    gate = x @ w["g_proj.weight"].T
    return y * (torch.sigmoid(gate) if config.get("output_gate_activation") == "sigmoid" else F.silu(gate))
