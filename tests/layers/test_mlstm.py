"""mLSTM against its recurrence in plain terms, without a stabilizer, and with gates that plain terms cannot hold."""

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from lavagna.modules.steps import Steps
from sample_layers import D, build, convolved, distance, text

FORMS = layers.layer_class("mlstm").forms
BLOCKS = ["mlstm", "mlstm paper", "mlstm uncapped"]


def front_7b(layer, x):
    """q, k, v by heads, what the gates see, and how the normed read ends, of one sequence (t, d)."""
    q, k, v = (x @ layer.front.qkv.linear.weight.T).split(layer.front.qkv.sizes, -1)
    gate = torch.sigmoid(x @ layer.front.gate.weight.T)
    return q, k, v, x, lambda h: gate * h


def front_paper(layer, x):
    """The same for the block of the small models, its block-diagonal matrices written out whole."""
    front = layer.front
    raised, gate = (x @ front.up.weight.T).chunk(2, -1)
    seen = F.silu(convolved(raised, front.conv.weight, front.conv.bias))
    q, k, v = (
        source @ torch.block_diag(*part.weight).T
        for part, source in ((front.q, seen), (front.k, seen), (front.v, raised))
    )
    return q, k, v, torch.cat([q, k, v], -1), lambda h: (h + front.skip * seen) * gate * torch.sigmoid(gate)


def weight_of(norm):
    """What a normed head is multiplied by."""
    return norm.weight + 1 if norm.zero_centered else norm.weight


def written_out(layer, x):
    """One sequence (t, d), head by head: outputs, and the last memory and normalizer in plain terms."""
    q, k, v, seen, end = (front_7b if layer.block == "7b" else front_paper)(layer, x)
    (heads, width), size = layer.values, layer.keys.size
    q, k, v = q.reshape(-1, heads, size) / size**0.5, k.reshape(-1, heads, size), v.reshape(-1, heads, width)
    log_i, log_f = (seen @ gate.weight.T + gate.bias for gate in (layer.input_gate, layer.forget_gate))
    if cap := layer.gate_cap:
        log_i, log_f = cap * torch.tanh(log_i / cap), cap * torch.tanh(log_f / cap)
    i, f = log_i.exp(), 1 / (1 + (-log_f).exp())
    h, S, n = torch.zeros_like(v), torch.zeros(heads, width, size).to(x), torch.zeros(heads, size).to(x)
    for t in range(len(x)):
        for j in range(heads):
            S[j] = f[t, j] * S[j] + i[t, j] * torch.outer(v[t, j], k[t, j])
            n[j] = f[t, j] * n[j] + i[t, j] * k[t, j]
            # What is added to the denominator is added over e^m, the greatest weight so far, 1 or more.
            weights = [(log_i[s, j] + f[s + 1 : t + 1, j].log().sum()).exp() for s in range(t + 1)]
            eps = layer.normalizer_eps * max(1.0, *weights)
            h[t, j] = S[j] @ q[t, j] / (max(abs(n[j] @ q[t, j]), 1.0) + eps)
    centered = h - h.mean(-1, keepdim=True)
    h = centered / (centered.square().mean(-1, keepdim=True) + layer.norm.eps).sqrt()
    return end(h.flatten(1) * weight_of(layer.norm)) @ layer.out.weight.T, torch.cat([S, n[:, None]], 1)


@pytest.mark.parametrize("variant", BLOCKS)
def test_it_is_its_recurrence_in_plain_terms(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    y, state = layer(x)
    rights, memories = zip(*(written_out(layer, row) for row in x), strict=True)
    assert distance(y, torch.stack(rights)) < 1e-12
    assert distance(state.memory * state.stabilizer[..., None].exp(), torch.stack(memories)) < 1e-12
    assert (state.stabilizer >= 0).all()


def read(v, log_input, forget, *, q=-1.0, form, dtype=torch.float64, device="cpu"):
    """The last read of a head with one channel and k = 1, and its gradient to all that entered."""
    inputs = [torch.tensor(x, dtype=dtype, device=device) for x in (v, log_input, forget)]
    inputs += [torch.full_like(inputs[0], q), torch.ones_like(inputs[0])]
    for x in inputs:
        x.requires_grad_()
    v, log_input, forget, q, k = (x[None, :, None] for x in inputs)
    layer = layers.build("mlstm", 16, heads=1, head_dim=1, expand=0.5).to(device, dtype)
    q, k, v = (x[..., None] for x in (q, k, v))
    state = layer.initial_state(1)
    steps = Steps("mlstm", v, form=form)
    h, after = layer.cell(q, k, v, log_input, F.logsigmoid(forget), state, steps)
    grads = torch.autograd.grad(h.sum() + after["memory"].sum(), inputs)
    return h[0, -1, 0, 0].item(), grads


READS = [
    ([3.0], [200.0], [0.0], -3.0),
    ([3.0], [-2.0], [0.0], -0.40600585),
    ([3.0], [-200.0], [0.0], 0.0),
    ([7.0, 3.0], [0.0, 200.0], [0.0, -1000.0], -3.0),
    ([7.0, 3.0], [0.0, -200.0], [0.0, 1000.0], -7.0),
    ([7.0, 3.0], [-1000.0, -1000.0], [-200.0, -200.0], 0.0),
    ([7.0, 3.0], [1000.0, 1000.0], [200.0, 200.0], -5.0),
    ([7.0, 3.0], [5.0, 2.0], [0.0, -torch.inf], -3.0),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("v", "log_input", "forget", "right"), READS)
def test_reads_are_right_and_gradients_finite_for_all_gates(v, log_input, forget, right, dtype, device):
    """Gates that ended in NaN for users; a query of -1 wants the absolute value in the denominator."""
    for form in FORMS:
        ours, grads = read(v, log_input, forget, form=form, dtype=dtype, device=device)
        assert ours == pytest.approx(right, rel=1e-6, abs=1e-8), form
        assert all(grad.isfinite().all() for grad in grads), form


@pytest.mark.parametrize("form", FORMS)
def test_a_query_that_meets_nothing_reads_zero_with_a_finite_gradient(form, device):
    ours, grads = read([7.0, 3.0], [1.0, -2.0], [0.0, 1.0], q=0.0, form=form, device=device)
    assert ours == 0 and all(grad.isfinite().all() for grad in grads)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scale", [200.0, 1000.0])
def test_a_layer_without_caps_has_finite_gradients_for_all_gates(form, scale, device):
    layer = layers.build("mlstm", D, heads=2, gate_cap=0).to(device)
    with torch.no_grad():
        for gate in (layer.input_gate, layer.forget_gate):
            gate.weight.normal_(std=scale / D**0.5)
            gate.bias.zero_()
    x = text(device, 2, 70, torch.float32)
    y, state = layer(x, form=form)
    right = layer.double()(x.double(), form="recurrent").y
    assert distance(y.double(), right) < 1e-3
    loss = layer.float()(x, form=form).y.square().sum()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss, list(layer.parameters())))
    assert all(tensor.isfinite().all() for tensor in state.tensors().values())


@pytest.mark.parametrize("variant", BLOCKS)
def test_gradients_are_those_of_the_recurrence_in_plain_terms(device, variant):
    layer, x = build(variant, device), text(device, 1, 6)
    if variant == "mlstm uncapped":
        layer.normalizer_eps = 0.0
    x.requires_grad_()
    wanted = [x, *layer.parameters()]
    right = torch.autograd.grad(_plain(layer, x[0]).square().sum(), wanted)
    for form in FORMS:
        ours = torch.autograd.grad(layer(x, form=form).y.square().sum(), wanted)
        assert max(map(distance, ours, right)) < 1e-9, form


def test_the_slope_of_the_stabilizer_in_an_eps_over_it_is_taken_out_by_the_norm(device):
    layer, x = build("mlstm uncapped", device), text(device, 1, 6)
    layer.normalizer_eps, layer.norm.eps = 0.1, 1e-14
    weight = layer.input_gate.weight
    direction = torch.randn_like(weight)
    (grad,) = torch.autograd.grad(layer(x).y.square().sum(), weight)
    ends = []
    with torch.no_grad():
        for shift in (1e-5, -2e-5):
            weight += shift * direction
            ends.append(layer(x).y.square().sum())
    assert distance((grad * direction).sum(), (ends[0] - ends[1]) / 2e-5) < 1e-6


def _plain(layer, x):
    """`written_out` as sums over earlier tokens, which autograd can follow."""
    q, k, v, seen, end = (front_7b if layer.block == "7b" else front_paper)(layer, x)
    (heads, width), size = layer.values, layer.keys.size
    q, k, v = q.reshape(-1, heads, size) / size**0.5, k.reshape(-1, heads, size), v.reshape(-1, heads, width)
    log_i, log_f = (seen @ gate.weight.T + gate.bias for gate in (layer.input_gate, layer.forget_gate))
    if cap := layer.gate_cap:
        log_i, log_f = cap * torch.tanh(log_i / cap), cap * torch.tanh(log_f / cap)
    sums = F.logsigmoid(log_f).cumsum(0)
    logs = log_i[None] + sums[:, None] - sums[None]
    scores = torch.einsum("thk,shk->tsh", q, k) * logs.exp() * torch.ones_like(logs[..., 0]).tril()[..., None]
    h = torch.einsum("tsh,shv->thv", scores, v) / scores.sum(1).abs().clamp_min(1)[..., None]
    h = F.layer_norm(h, (width,), eps=layer.norm.eps).flatten(1) * weight_of(layer.norm)
    return end(h) @ layer.out.weight.T


@pytest.mark.parametrize("block", ["7b", "paper"])
def test_a_new_layer_has_the_gates_of_the_paper(block):
    layer = layers.build("mlstm", 256, block=block, heads=4, depth=2)
    assert layer.forget_gate.bias.tolist() == [3, 4, 5, 6]
    assert not layer.input_gate.weight.any() and not layer.forget_gate.weight.any()
    if block == "7b":
        assert layer.input_gate.bias.tolist() == [-10] * 4
        assert (layer.block_norm, layer.block_mlp) == ("rms", "swiglu")
    else:
        assert layer.input_gate.bias.abs().max() < 0.6 and (layer.front.skip == 1).all()
        assert (layer.block_norm, layer.block_mlp) == ("layer", None)
    assert layer.out.weight.std().item() == pytest.approx(2 / 2 / 16, rel=0.05)
    up = layer.front.qkv.linear if block == "7b" else layer.front.up
    assert up.weight.std().item() == pytest.approx((2 / (5 * 256)) ** 0.5, rel=0.05)


def test_gates_are_capped_softly(device):
    layer = layers.build("mlstm", D, heads=1, gate_cap=2.0).to(device)
    with torch.no_grad():
        layer.input_gate.bias.fill_(1000.0)
    assert layer(text(device, 1, 1, torch.float32)).state.stabilizer.item() == pytest.approx(2.0)


def test_a_long_text_with_large_gates_stays_near_float64(device):
    layer = layers.build("mlstm", D, heads=1, head_dim=4, gate_cap=0).to(device)
    with torch.no_grad():
        layer.input_gate.weight.normal_(std=5)
        layer.forget_gate.weight.normal_(std=5)
    x = text(device, 1, 20_000, torch.float32)
    y, state = layer(x)
    right, last = layer.double()(x.double())
    assert distance(y.double(), right) < 1e-3
    assert distance(state.memory.double(), last.memory) < 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": "8b"}, "block must be one of 7b, paper, but came as '8b'"),
        ({"conv_size": 4}, "conv_size=4 is an option of block='paper' alone"),
        ({"block": "paper", "projection_block": 5}, "projection_block=5 does not divide expand"),
        ({"block": "paper", "expand_k": 1.0}, "expand_k=1.0 differs from expand = 2"),
        ({"block": "paper", "conv_size": 0}, "conv_size must be an int >= 1"),
        ({"heads": 3}, "heads=3 does not divide expand_k"),
        ({"expand": 0.7}, "is no whole number of channels"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("mlstm", D, **options)
