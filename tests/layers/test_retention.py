"""Retention against its recurrence written out, and its decays."""

import math

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv
from lavagna import layers
from sample_layers import D, distance, rms, text, turned


def written_out(layer, x):
    """The recurrence of one sequence (t, d), head by head, pairs of channels as complex numbers."""
    heads, size = layer.keys
    q, k, v, gate = (x @ layer.qkvg.weight.T).split(layer.sizes, -1)
    q, k, v = q.reshape(-1, heads, size), k.reshape(-1, heads, size), v.reshape(-1, *layer.values)
    exponents = [j / max(size // 2 - 1, 1) for j in range(size // 2)]
    outputs = []
    for h in range(heads):
        gamma, S = 1 - 2.0 ** (-5 - h), torch.zeros(layer.values.size, size, dtype=x.dtype, device=x.device)
        for t in range(len(x)):
            S = gamma * S + torch.outer(v[t, h], turned(k[t, h], t, exponents))
            outputs.append(S @ turned(q[t, h], t, exponents) / math.sqrt(size))
    reads = torch.stack(outputs).reshape(heads, len(x), -1).transpose(0, 1)
    y = rms(reads, layer.norm.eps).reshape(len(x), -1) * F.silu(gate)
    return y @ layer.out.weight.T


def test_it_is_its_recurrence(device):
    layer, x = layers.build("retention", D, heads=4).to(device).double(), text(device, 2, 9)
    assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


@pytest.mark.parametrize("form", ["recurrent", "scan", "chunkwise", "parallel"])
@pytest.mark.parametrize("chunk", [3, 5, 12, 16])
def test_retention_of_ones_is_a_geometric_sum_in_every_form(device, form, chunk):
    gamma, one = 1 - 2.0**-5, torch.ones(1, 12, 1, 1, device=device, dtype=torch.float64)
    decay = layers.build("retention", 16, heads=1).log_gamma(device=device)[None, None, :, None]
    output, _ = lv.recur(lv.scalar(decay), one, one, one, form=form, chunk=chunk)
    right = torch.tensor([(1 - gamma**t) / (1 - gamma) for t in range(1, 13)], dtype=torch.float64, device=device)
    assert distance(output.flatten(), right) < 1e-12
    assert abs(output[0, -1].item() - 10.137966) < 1e-6


@pytest.mark.parametrize("scale", [1, 1e-2, 1e-4])
def test_forms_agree_at_every_scale_of_the_input(device, scale):
    layer = layers.build("retention", D, heads=2).to(device)
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
        ({"heads": 2, "head_dim": 5}, "head_dim must be even.*Use head_dim=6"),
        ({"expand": 0.3}, "expand=0.3 times head_dim"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("retention", D, **options)
