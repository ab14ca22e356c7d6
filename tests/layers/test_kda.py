"""Kimi Delta Attention against its recurrence written out, the layers it reduces to, and the model in transformers."""

import math

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv
from lavagna import layers
from lavagna.forms import FORMS
from sample_layers import D, convolved, distance, made, rms, text


def log_decays(layer, x):
    """The log-decay of each step, value head and key channel, as published."""
    step = x @ layer.step.down.weight.T @ layer.step.up.weight.T + layer.dt_bias
    step = step.reshape(-1, layer.values.count, layer.keys.size)
    rate = layer.A_log.exp()[:, None]
    if layer.lower_bound is None:
        return -rate * torch.log1p(torch.exp(step))
    return layer.lower_bound / (1 + torch.exp(-rate * step))


def written_out(layer, x, S=None):
    """The recurrence of one sequence (t, d), value head by value head, from convolution to output; and its memory."""
    (heads, size), (value_heads, _) = layer.keys, layer.values
    mixed = x @ layer.qkv.linear.weight.T
    mixed = F.silu(mixed if layer.qkv.conv is None else convolved(mixed, layer.qkv.conv.weight))
    q, k, v = mixed.split(layer.qkv.sizes, -1)
    q, k, v = q.reshape(-1, heads, size), k.reshape(-1, heads, size), v.reshape(-1, *layer.values)
    q, k = (z / (z.square().sum(-1, keepdim=True) + 1e-6).sqrt() for z in (q, k))
    beta = layer.max_beta / (1 + torch.exp(-x @ layer.beta.weight.T))
    alpha = log_decays(layer, x).exp()
    reads = torch.zeros_like(v)
    memory = torch.zeros(value_heads, layer.values.size, size, dtype=x.dtype, device=x.device) if S is None else 1 * S
    for h in range(value_heads):
        group = h // (value_heads // heads)
        for t in range(len(x)):
            faded = memory[h] * alpha[t, h]
            memory[h] = faded + beta[t, h] * torch.outer(v[t, h] - faded @ k[t, group], k[t, group])
            reads[t, h] = memory[h] @ q[t, group] / math.sqrt(size)
    gate = x @ layer.gate.down.weight.T @ layer.gate.up.weight.T
    gate = gate if layer.gate.up.bias is None else gate + layer.gate.up.bias
    y = rms(reads, layer.norm.eps) * layer.norm.weight / (1 + torch.exp(-gate.reshape(v.shape)))
    return y.reshape(len(x), -1) @ layer.out.weight.T, memory


OPTIONS = [{}, {"lower_bound": -5.0, "expand": 2, "conv_size": 0}, {"heads": 2, "value_heads": 4, "gate_bias": False}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_it_is_its_recurrence(device, options):
    layer, x = made("kda", device, **options), text(device, 2, 9)
    ys, memories = zip(*(written_out(layer, row) for row in x), strict=True)
    for form in layer.forms:
        y, state = layer(x, form=form)
        assert distance(y, torch.stack(ys)) < 1e-12, form
        assert distance(state.memory, torch.stack(memories)) < 1e-12, form


@pytest.mark.parametrize("length", [9, 70])
def test_with_all_channels_of_a_head_alike_it_is_gated_delta_net(device, length):
    kda = layers.build("kda", D, heads=2, value_heads=4, gate_rank=D, gate_bias=False, expand=2).to(device).double()
    gated = layers.build("gated_delta_net", D, heads=2, value_heads=4, activation="sigmoid").to(device).double()
    with torch.no_grad():
        for one in (kda.step.down, kda.gate.down):
            one.weight.copy_(torch.eye(D))
        kda.step.up.weight.copy_(gated.step.weight.repeat_interleave(kda.keys.size, 0))
        kda.dt_bias.copy_(gated.dt_bias.repeat_interleave(kda.keys.size, 0))
        kda.gate.up.weight.copy_(gated.gate.weight)
    same = {name: x for name, x in gated.state_dict().items() if name in kda.state_dict() and name != "dt_bias"}
    kda.load_state_dict(same, strict=False)
    x = text(device, 2, length)
    (y, state), (right, last) = kda(x), gated(x)
    assert distance(y, right) < 1e-12 and distance(state.memory, last.memory) < 1e-12


@pytest.mark.parametrize("form", FORMS)
def test_a_value_head_reads_the_key_head_of_its_group_and_decays_on_its_own(device, form):
    """Keys of head 0 and 1 are the channels 0 and 1: four value heads then stand under the channels 0, 0, 1, 1."""
    k = torch.eye(2, dtype=torch.float64, device=device).reshape(1, 1, 2, 2)
    v = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64, device=device).reshape(1, 1, 4, 1)
    fade = torch.tensor([0.5, 0.25, 0.125, 1.0], dtype=torch.float64, device=device).log().reshape(1, 1, 4, 1)
    start = torch.ones(1, 4, 1, 2, dtype=torch.float64, device=device)
    a = lv.gated_householder(fade.expand(1, 1, 4, 2), k, torch.ones(1, 1, 4, dtype=torch.float64, device=device))
    state = lv.recur(a, k, k, v, start, form=form).state[0, :, 0]
    right = [[1.0, 0.5], [2.0, 0.25], [0.125, 3.0], [1.0, 4.0]]
    assert torch.allclose(state, torch.tensor(right, dtype=torch.float64, device=device), atol=1e-12, rtol=0)


def test_a_new_layer_has_the_decays_of_the_paper():
    layer = layers.build("kda", 1024, heads=64)
    assert (layer.A_log.exp() > 0.999).all() and (layer.A_log.exp() < 16.001).all() and layer.A_log.std() > 0.3
    steps = F.softplus(layer.dt_bias)
    assert (steps > 0.999e-3).all() and (steps < 0.1001).all() and steps.log().std() > 1
    bounded = layers.build("kda", D, lower_bound=-5.0)
    assert not bounded.A_log.any() and bounded(torch.randn(1, 5, D)).y.isfinite().all()


@pytest.fixture(scope="module")
def published(transformers):
    """The layer of transformers, small, with weights off their initial values, and ours with the same ones."""
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    sizes = {"hidden_size": D, "linear_num_heads": 2, "linear_head_dim": 8, "linear_conv_kernel_dim": 4}
    config = kimi.KimiLinearConfig(**sizes, num_hidden_layers=1, layer_types=["linear_attention"])
    torch.manual_seed(0)
    theirs = kimi.KimiLinearDeltaAttention(config, 0)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    ours = layers.build("kda", D, heads=2, head_dim=8, gate_bias=False, norm_eps=config.rms_norm_eps)
    same = {
        "qkv.linear": torch.cat([theirs.q_proj.weight, theirs.k_proj.weight, theirs.v_proj.weight]),
        "qkv.conv": theirs.conv1d.weight[:, 0],
        "step.down": theirs.forget_gate.f_a_proj.weight,
        "step.up": theirs.forget_gate.f_b_proj.weight,
        "beta": theirs.b_proj.weight,
        "gate.down": theirs.g_a_proj.weight,
        "gate.up": theirs.g_b_proj.weight,
        "norm": theirs.o_norm.weight,
        "out": theirs.o_proj.weight,
    }
    dynamics = {"A_log": theirs.forget_gate.A_log.flatten(), "dt_bias": theirs.forget_gate.dt_bias}
    ours.load_state_dict({f"{name}.weight": x for name, x in same.items()} | dynamics)
    return kimi, theirs, ours


@pytest.mark.parametrize("length", [1, 9, 70])
def test_it_is_the_layer_of_transformers(published, length):
    _, theirs, ours = published
    x = torch.randn(2, length, D)
    with torch.no_grad():
        assert distance(ours(x).y, theirs(x)) < 1e-5


def test_its_rule_is_the_step_by_step_rule_of_transformers(published):
    kimi, *_ = published
    q, k, v, g = torch.randn(4, 2, 20, 3, 8)
    beta, start = torch.rand(2, 20, 3), torch.randn(2, 3, 8, 8)
    k = F.normalize(k, dim=-1)
    theirs, last = kimi.recurrent_kimi_delta_attention(q, k, v, F.logsigmoid(g), beta, start.mT, True)
    a = lv.gated_householder(F.logsigmoid(g), k, beta)
    ours = lv.recur(a, q * 8**-0.5, k, beta[..., None] * v, start)
    assert distance(ours.output, theirs) < 1e-5 and distance(ours.state, last.mT) < 1e-5
