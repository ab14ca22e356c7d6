"""torchscale's RetNet: the same logits as its definition, step by step, with the names and shapes of its package."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file

import lavagna as lv
from checkpoints.formats.comparison import damages, distance, logits, round_trip_is_exact, same_logits
from lavagna.checkpoints import formats
from lavagna.checkpoints.plan import plan
from sample_layers import rms, turned

WIDTH, VALUES, HEADS, HIDDEN, DEPTH, VOCAB = 32, 48, 4, 40, 2, 50
SIZES = {
    "decoder_embed_dim": WIDTH,
    "decoder_value_embed_dim": VALUES,
    "decoder_retention_heads": HEADS,
    "decoder_ffn_embed_dim": HIDDEN,
    "decoder_layers": DEPTH,
    "vocab_size": VOCAB,
}
GATES = {
    "gelu": torch.nn.functional.gelu,
    "swish": torch.nn.functional.silu,
    "relu": torch.relu,
}
VARIANTS = {
    "plain": {"activation_fn": "swish", "layernorm_eps": 1e-5},
    "scaled": {"no_scale_embedding": False, "layernorm_embedding": True, "activation_fn": "gelu"},
    "shared": {"share_decoder_input_output_embed": True, "activation_fn": "relu", "subln": True, "dropout": 0.1},
}


def tensors(config, prefix=""):
    """A random state dict of `RetNetDecoder`; its buffers are as the package makes them."""
    shapes = {"embed_tokens": (VOCAB, WIDTH), "layer_norm": (WIDTH,), "output_projection": (VOCAB, WIDTH)}
    if config.get("layernorm_embedding"):
        shapes["layernorm_embedding"] = (WIDTH,)
    for i in range(DEPTH):
        shapes |= {f"layers.{i}.retention.{part}_proj": (WIDTH, WIDTH) for part in "qk"}
        shapes |= {f"layers.{i}.retention.{part}_proj": (VALUES, WIDTH) for part in "vg"}
        shapes |= {f"layers.{i}.retention.out_proj": (WIDTH, VALUES), f"layers.{i}.ffn.fc2": (WIDTH, HIDDEN)}
        shapes |= {f"layers.{i}.ffn.{part}": (HIDDEN, WIDTH) for part in ("fc1", "gate")}
        shapes |= {f"layers.{i}.{norm}_layer_norm": (WIDTH,) for norm in ("retention", "final")}
    made = {
        f"{prefix}{name}.weight": torch.randn(shape) * (shape[1] ** -0.5 if len(shape) == 2 else 0.2)
        + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    if config.get("share_decoder_input_output_embed"):
        made[f"{prefix}output_projection.weight"] = made[f"{prefix}embed_tokens.weight"].clone()
    angle = 1 / 10000 ** torch.linspace(0, 1, WIDTH // HEADS // 2)
    return made | {
        f"{prefix}retnet_rel_pos.angle": angle.unsqueeze(-1).repeat(1, 2).flatten(),
        f"{prefix}retnet_rel_pos.decay": torch.log(1 - 2 ** (-5 - torch.arange(HEADS, dtype=torch.float))),
    }


def retention(x, weights, eps):
    """Their recurrent form: a memory that is kept divided by the root of what the decays sum to."""
    q, k, v, g = (x @ weights[f"{part}_proj.weight"].T for part in "qkvg")
    size, exponents = WIDTH // HEADS, torch.linspace(0, 1, WIDTH // HEADS // 2, dtype=torch.float64).tolist()
    out = []
    for h in range(HEADS):
        gamma, memory, scale = 1 - 2.0 ** (-5 - h), torch.zeros(size, VALUES // HEADS, dtype=torch.float64), 0.0
        mine = [z.unflatten(-1, (HEADS, -1))[:, h] for z in (q, size**-0.5 * k, v)]
        for t, (q_t, k_t, v_t) in enumerate(zip(*mine, strict=True)):
            before, scale = scale, gamma * scale + 1
            written = torch.outer(turned(k_t, t, exponents), v_t) / scale**0.5
            memory = memory * gamma * (before / scale) ** 0.5 + written
            out.append(turned(q_t, t, exponents) @ memory)
    read = rms(torch.stack(out).unflatten(0, (HEADS, -1)).transpose(0, 1), eps).flatten(1)
    return (torch.nn.functional.silu(g) * read) @ weights["out_proj.weight"].T


def definition(state, config, ids):
    """The logits of one text (t), float64."""
    state, eps = {name: x.double() for name, x in state.items()}, config.get("layernorm_eps", 1e-6)

    def norm(x, name):
        return rms(x, eps) * state[f"{name}.weight"]

    x = state["embed_tokens.weight"][ids] * (1 if config.get("no_scale_embedding", True) else math.sqrt(WIDTH))
    x = norm(x, "layernorm_embedding") if config.get("layernorm_embedding") else x
    for i in range(DEPTH):
        parts = {name.removeprefix(f"layers.{i}.retention."): z for name, z in state.items() if f".{i}.ret" in name}
        x = x + retention(norm(x, f"layers.{i}.retention_layer_norm"), parts, eps)
        y = norm(x, f"layers.{i}.final_layer_norm")
        first, gate = (y @ state[f"layers.{i}.ffn.{part}.weight"].T for part in ("fc1", "gate"))
        hidden = GATES[config.get("activation_fn", "gelu")](first) * gate
        x = x + hidden @ state[f"layers.{i}.ffn.fc2.weight"].T
    return norm(x, "layer_norm") @ state["output_projection.weight"].T


def as_called(state, config):
    """The definition as a function of ids, the ids before them, and a mask: every row by itself."""

    def theirs(ids, past=None, mask=None):
        seen = ids if past is None else torch.cat([past, ids], 1)
        real = torch.ones_like(seen, dtype=torch.bool) if mask is None else mask
        out = torch.zeros(*seen.shape, VOCAB, dtype=torch.float64)
        for row in range(len(seen)):
            out[row, real[row]] = definition(state, config, seen[row, real[row]])
        return out[:, -ids.shape[1] :], seen

    return theirs


def written(folder, state, config):
    folder.mkdir(exist_ok=True)
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_those_of_the_definition(variant, tmp_path):
    config = SIZES | VARIANTS[variant]
    state = tensors(config)
    model = same_logits(written(tmp_path, state, config), as_called(state, config), tolerance=1e-5)
    round_trip_is_exact(tmp_path)
    assert model.config.layer_options("retention")["rescale"] == "decay"
    ids, wide = torch.randint(VOCAB, (1, 40)), lv.load(tmp_path, dtype=torch.float64)[0]
    right = definition(state, config, ids[0])
    for form in wide.blocks[0].mixer.forms:
        assert distance(wide(ids, form=form).logits[0], right) < 1e-10, form


def test_a_file_of_fairseq_has_it_under_the_name_of_its_model_and_the_config_beside(tmp_path):
    config = {"activation_fn": "swish", "no_scale_embedding": False}
    state = tensors(config)
    file = tmp_path / "checkpoint_best.pt"
    torch.save({"model": {f"decoder.{name}": x for name, x in state.items()}, "epoch": 3}, file)
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = torch.randint(VOCAB, (1, 20))
    for path in (file, tmp_path):
        model = lv.load(path).model
        assert distance(logits(model, ids)[0][0], definition(state, config, ids[0])) < 1e-5
    round_trip_is_exact(tmp_path)
    assert plan(file).format == "fairseq_retnet"


def test_sizes_are_read_off_the_shapes_and_heads_off_the_decays(tmp_path):
    state = tensors({})
    torch.save(state, tmp_path / "model.pt")
    (tmp_path / "config.json").write_text('{"activation_fn": "gelu"}')
    ids = torch.randint(VOCAB, (1, 20))
    assert distance(logits(lv.load(tmp_path).model, ids)[0][0], definition(state, {}, ids[0])) < 1e-5


@pytest.mark.parametrize("config", ["", '{"hidden_size": 7}'])
def test_what_no_shape_tells_is_asked_for(tmp_path, config):
    state = {name: x for name, x in tensors({}).items() if "rel_pos" not in name}
    torch.save(state, tmp_path / "model.pt")
    if config:
        (tmp_path / "config.json").write_text(config)
    said = "torchscale_retnet.*don't tell activation_fn, no_scale_embedding, layernorm_eps, decoder_retention_heads"
    with pytest.raises(ValueError, match=said):
        lv.load(tmp_path / "model.pt")
    (tmp_path / "config.json").write_text('{"activation_fn": "gelu"}')
    with pytest.raises(ValueError, match="don't tell decoder_retention_heads"):
        lv.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"decoder_retention_heads": HEADS}))
    assert lv.load(tmp_path).model.config.layer_options("retention")["heads"] == HEADS


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"deepnorm": True}, "deepnorm is True, but only False is read"),
        ({"decoder_normalize_before": False}, "decoder_normalize_before is False"),
        ({"moe_freq": 2}, "moe_freq is 2"),
        ({"multiway": True}, "multiway is True"),
        ({"activation_fn": "tanh"}, "activation_fn is 'tanh', but only gelu, swish, relu are read"),
        ({"decoder_retention_heads": 3}, "decoder_retention_heads is 3, which does not divide its widths 32, 48"),
        (
            {"decoder_ffn_embed_dim": 8},
            r"layers.0.ffn.fc1.weight is \(40, 32\) where the configuration wants \(8, 32\)",
        ),
    ],
)
def test_what_would_make_another_model_is_refused_by_name(tmp_path, changed, said):
    with pytest.raises(ValueError, match=said):
        lv.load(written(tmp_path, tensors({}), SIZES | changed))


def test_other_decays_are_refused(tmp_path):
    state = tensors({})
    state["retnet_rel_pos.decay"] *= 0.9
    with pytest.raises(ValueError, match="retnet_rel_pos.decay are not log"):
        lv.load(written(tmp_path, state, SIZES))
    narrow = {name: x.bfloat16() for name, x in tensors({}).items()}
    lv.load(written(tmp_path, narrow, SIZES))


def test_damages_are_named(tmp_path):
    damages(written(tmp_path / "whole", tensors({}), SIZES), "torchscale_retnet", tmp_path)


def test_what_it_can_hold_is_described_and_the_rest_refused(tmp_path):
    format = formats.of_name("torchscale_retnet")
    config = SIZES | VARIANTS["scaled"]
    described = plan(written(tmp_path, tensors(config), config)).model.config
    again = format.foreign_config(described)
    assert format.model_config(again, plan(tmp_path).weights.shapes) == described
    with pytest.raises(ValueError, match="has rescale='decay', but the model 'scale'"):
        format.foreign_config(lv.ModelConfig("retention", 32, 2, vocab_size=50))
