"""Retention against its recurrence written out, and its decays."""

import cmath
import math
from decimal import Decimal, localcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv
from lavagna import layers
from sample_layers import D, distance, rms, text, turned

# Options of the layer, and what the formula has in their place.
OPTIONS = {
    "default": {},
    "paper": {"decay": "paper"},
    "unscaled": {"rescale": "none"},
    "torchscale": {"rescale": "decay"},
    "all rescalings": {"rescale": "paper", "norm_eps": 1e-2},
    "flash-linear-attention": {"rotation": "halves", "affine": True, "norm_eps": 1e-5},
    "ungated": {"gate": False, "affine": True},
    "shared keys": {"kv_heads": 2, "rescale": "paper"},
    "another gate": {"activation": "gelu", "expand": 1.5},
}


def turned_halves(x, position):
    """Channel j with channel j + k / 2 as one complex number, turned by position * 10000^(-2j / k)."""
    half = x.shape[-1] // 2
    angles = [position * 10000.0 ** (-j / half) for j in range(half)]
    z = torch.complex(x[:half], x[half:]) * x.new_tensor([cmath.exp(1j * a) for a in angles], dtype=torch.complex128)
    return torch.cat([z.real, z.imag])


def written_out(layer, x, *, start=0, rescale="scale", rotation="interleaved", activation="silu", decay="powers", **_):
    """The recurrence of one sequence (t, d), head by head, from an empty memory at position `start`."""
    heads, size = layer.keys
    q, k, v, *gate = (x @ layer.qkvg.weight.T).split(layer.sizes, -1)
    q = q.reshape(-1, heads, size)
    # Heads 0 and 1 read the first pair of keys and values, 2 and 3 the second, where two are shared by four.
    k, v = (
        z.reshape(len(x), -1, wide).repeat_interleave(heads * wide // z.shape[1], 1)
        for z, wide in ((k, size), (v, layer.values.size))
    )
    exponents = [j / max(size // 2 - 1, 1) for j in range(size // 2)]
    outputs = []
    for h in range(heads):
        gamma, S = 1 - 2.0 ** (-5 - h), x.new_zeros(layer.values.size, size)
        sums = x.new_zeros(size)
        if decay == "paper":
            gamma = 1 - math.exp(math.log(1 / 32) + (math.log(1 / 512) - math.log(1 / 32)) * h / (heads - 1))
        decays = sum(gamma**n for n in range(start))
        for t in range(len(x)):
            at, decays = start + t, gamma * decays + 1
            turn = turned_halves if rotation == "halves" else partial(turned, exponents=exponents)
            S = gamma * S + torch.outer(v[t, h], turn(k[t, h], at))
            sums = gamma * sums + turn(k[t, h], at)
            query = {"none": 1, "scale": size**-0.5}.get(rescale, (size * decays) ** -0.5) * turn(q[t, h], at)
            outputs.append(S @ query / (max(abs(sums @ query), 1) if rescale == "paper" else 1))
    y = rms(torch.stack(outputs).reshape(heads, len(x), -1).transpose(0, 1), layer.norm.eps)
    y = (y if layer.norm.weight is None else y * layer.norm.weight).reshape(len(x), -1)
    return (y * getattr(F, activation)(gate[0]) if gate else y) @ layer.out.weight.T


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_it_is_its_recurrence(device, options):
    layer, x = layers.build("retention", D, heads=4, **options).to(device).double(), text(device, 2, 9)
    if layer.norm.weight is not None:
        torch.nn.init.normal_(layer.norm.weight)
    right = torch.stack([written_out(layer, row, **options) for row in x])
    assert distance(layer(x).y, right) < 1e-12


@pytest.mark.parametrize("form", ["recurrent", "scan", "chunkwise", "parallel"])
@pytest.mark.parametrize("chunk", [3, 5, 12, 16])
def test_retention_of_ones_is_a_geometric_sum_in_every_form(device, form, chunk):
    gamma, one = 1 - 2.0**-5, torch.ones(1, 12, 1, 1, device=device, dtype=torch.float64)
    decay = layers.build("retention", 16, heads=1).log_gamma(device=device)[None, None, :, None]
    output, _ = lv.recur(lv.scalar(decay), one, one, one, form=form, chunk=chunk)
    right = torch.tensor([(1 - gamma**t) / (1 - gamma) for t in range(1, 13)], dtype=torch.float64, device=device)
    assert distance(output.flatten(), right) < 1e-12
    assert abs(output[0, -1].item() - 10.137966) < 1e-6


@pytest.mark.parametrize(("rescale", "eps"), [("paper", 1e-5), ("decay", 1e-6), ("scale", 1e-6), ("none", 0.0)])
@pytest.mark.parametrize("scale", [1, 1e-2, 1e-4])
def test_forms_agree_at_every_scale_of_the_input_for_any_eps(device, scale, eps, rescale):
    layer = layers.build("retention", D, heads=2, rescale=rescale, norm_eps=eps).to(device)
    x = scale * text(device, 1, 70, torch.float32)
    right, last = layer.double()(x.double(), form="recurrent")
    layer.float()
    for form in layer.forms:
        y, _ = layer(x, form=form)
        assert distance(y.double(), right) < 1e-5, form
        first, state = layer(x[:, :5], form=form)
        rest, end = layer(x[:, 5:], state, form=form)
        assert distance(torch.cat([first, rest], 1).double(), right) < 1e-5, form
        assert distance(end.memory.double(), last.memory) < 1e-5, form


@pytest.mark.parametrize("rescale", ["scale", "decay", "paper"])
def test_a_rescaling_changes_the_eps_of_the_norm_and_nothing_else(device, rescale):
    x = 10 * text(device, 1, 20)
    layer, plain = (
        layers.build("retention", D, heads=2, norm_eps=1e-2, rescale=which).to(device).double()
        for which in (rescale, "none")
    )
    plain.load_state_dict(layer.state_dict())
    (y, state), (unscaled, same) = layer(x), plain(x)
    assert distance(state.memory[..., : layer.values.size, :], same.memory) < 1e-13
    assert distance(y, unscaled) > 1e-4
    layer.norm.eps = plain.norm.eps = 0.0
    assert distance(layer(x).y, plain(x).y) < 1e-13


@pytest.mark.parametrize("position", [0, 1, 999, 100_000, 123_456_789])
def test_what_decays_sum_to_is_exact_for_heads_that_hardly_fade(device, position):
    layer = layers.build("retention", 128, heads=64).to(device, torch.bfloat16)
    sums = layer.decay_sums(torch.tensor([[position]], device=device))[0, 0]
    with localcontext() as context:
        context.prec = 60
        faded = [Decimal(2) ** (-5 - h) for h in range(64)]
        right = [float((1 - (1 - x) ** (position + 1)) / x) for x in faded]
    assert torch.allclose(sums, torch.tensor(right, dtype=torch.float64, device=device), rtol=1e-14, atol=0)


def test_masked_and_packed_steps_have_the_scale_of_their_place_among_the_real_ones(device):
    layer = layers.build("retention", D, heads=2, rescale="decay", norm_eps=1e-2).to(device).double()
    x = text(device, 1, 12)
    mask = torch.tensor([[0, 0, 1, 1, 0, 1, 1, 1, 0, 1, 1, 0]], device=device).bool()
    y = layer(x, mask=mask).y[0, mask[0]]
    assert distance(y, written_out(layer, x[0, mask[0]], rescale="decay")) < 1e-12
    packed = layer(x, cu_seqlens=[0, 5, 12]).y[0]
    right = [written_out(layer, part, rescale="decay") for part in (x[0, :5], x[0, 5:])]
    assert distance(packed, torch.cat(right)) < 1e-12


@pytest.mark.parametrize("options", [{}, {"rotation": "halves"}, {"rescale": "decay"}])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_after_a_hundred_thousand_tokens_positions_are_as_exact_as_at_the_first(device, options, dtype, tolerance):
    layer = layers.build("retention", D, heads=4, **options).to(device, dtype)
    late = layer.initial_state(1).replace(tokens_seen=torch.tensor([100_000], device=device))
    x = text(device, 1, 6, dtype)
    y = layer(x, late).y[0]
    right = written_out(layer.double(), x[0].double(), start=100_000, **options)
    assert distance(y.double(), right) < tolerance


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nothing_leaks_from_the_future_where_a_narrow_gamma_would_be_one(device, dtype):
    layer = layers.build("retention", 128, heads=64, expand=1).to(device, dtype)
    x = torch.randn(1, 40, 128, device=device).to(dtype)
    later = torch.cat([x[:, :20], 50 * x[:, 20:]], 1)
    for form in layer.forms:
        assert torch.equal(layer(x, form=form).y[:, :20], layer(later, form=form).y[:, :20]), form


def test_the_published_scale_keeps_large_inputs_within_the_range_of_float16(device):
    layer = layers.build("retention", 64, heads=4, rescale="decay").to(device)
    x = 100 * torch.randn(1, 300, 64, device=device).half()
    right = layer(x.float()).y
    assert distance(layer.half()(x).y.float(), right) < 3e-3


def test_no_head_of_sixty_four_stops_fading_however_the_layer_is_cast(device):
    for cast in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        log_gamma = layers.build("retention", 1024, heads=64).to(device, cast).log_gamma(device=device)
        right = [math.log1p(-(2.0 ** (-5 - h))) for h in range(64)]
        assert torch.allclose(log_gamma, torch.tensor(right, dtype=torch.float64, device=device), rtol=1e-14)
        assert (log_gamma.float() < 0).all()


def test_the_paper_s_schedule_runs_from_one_in_32_to_one_in_512():
    layer = layers.build("retention", D, heads=4, decay="paper")
    right = [1 / 32, 2 ** (-5 - 4 / 3), 2 ** (-5 - 8 / 3), 1 / 512]
    assert torch.allclose(-torch.expm1(layer.log_gamma()), torch.tensor(right, dtype=torch.float64), rtol=1e-13)


def test_five_heads_fade_alike_in_both_schedules():
    powers, paper = (layers.build("retention", 80, heads=5, decay=decay).log_gamma() for decay in ("powers", "paper"))
    assert torch.allclose(powers, paper, rtol=1e-13)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": "fast"}, "decay must be one of powers, paper, but came as 'fast'"),
        ({"rescale": "scores"}, "rescale='scores'.* memory of fixed size does not hold.* Use rescale='paper'"),
        ({"heads": 2, "head_dim": 5}, "head_dim must be even.*Use head_dim=6"),
        ({"expand": 0.3}, "expand=0.3 times head_dim"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("retention", D, **options)
