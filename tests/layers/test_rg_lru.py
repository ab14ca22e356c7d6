"""The RG-LRU against its recurrence written out, its first token, its initial values, decays of exactly one."""

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from sample_layers import D, build, convolved, distance, text


def written_out(layer, u):
    """One sequence (t, d), channel by channel, in the letters of the paper; the reads and the last memory."""
    heads, size = layer.heads
    x = convolved(u @ layer.x.weight.T + layer.x.bias, layer.conv.weight, layer.conv.bias)
    gates = []
    for linear in (layer.decay_gate, layer.input_gate):
        whole = torch.block_diag(*linear.weight)
        gates.append(1 / (1 + torch.exp(-(x @ whole.T + linear.bias))))
    r, i = gates
    h, reads = torch.zeros(heads * size, dtype=u.dtype, device=u.device), []
    # a = sigmoid(-Lambda) to the power of 8 r.
    base = 1 / (1 + torch.exp(layer.Lambda))
    for t in range(len(u)):
        a = base ** (8 * r[t])
        factor = torch.sqrt(1 - a**2) if t else 1
        h = a * h + factor * i[t] * x[t]
        reads.append(h)
    y = torch.stack(reads) * F.gelu(u @ layer.gate.weight.T + layer.gate.bias, approximate="tanh")
    return y @ layer.out.weight.T + layer.out.bias, h


@pytest.mark.parametrize("variant", ["rg_lru", "rg_lru wide"])
@pytest.mark.parametrize("form", ["recurrent", "scan", "chunkwise", "parallel"])
def test_it_is_its_recurrence(device, variant, form):
    layer, x = build(variant, device), text(device, 2, 9)
    y, state = layer(x, form=form)
    for row in range(2):
        right, h = written_out(layer, x[row])
        assert distance(y[row], right) < 1e-11
        assert distance(state.memory[row].flatten(), h) < 1e-11


def test_the_first_token_of_each_sequence_is_written_whole(device):
    layer, x = build("rg_lru", device), text(device, 1, 7)
    y, _ = layer(x, cu_seqlens=[0, 3, 7])
    assert distance(y[0, 3:], written_out(layer, x[0, 3:])[0]) < 1e-11
    mask = torch.tensor([[0, 0, 1, 1, 0, 1, 1]], device=device).bool()
    y, _ = layer(x, mask=mask)
    assert distance(y[mask], written_out(layer, x[mask])[0]) < 1e-11
    # A state without tokens is that of a start.
    assert torch.equal(layer(x, layer.initial_state(1)).y, layer(x).y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [-20.0, -120.0, -1000.0])
def test_decays_up_to_exactly_one_have_finite_gradients(device, dtype, bias):
    layer, x = build("rg_lru", device, dtype), text(device, 1, 6, dtype).requires_grad_()
    with torch.no_grad():
        layer.decay_gate.bias.fill_(bias)
    y, state = layer(x)
    grads = torch.autograd.grad(y.square().sum() + state.memory.sum(), [x, *layer.parameters()])
    assert all(grad.isfinite().all() for grad in grads)
    # Past the first token nothing fades and next to nothing is written.
    assert distance(layer(x[:, :1]).state.memory, state.memory) < 1e-2


def test_a_channel_keeps_the_variance_of_what_it_hears(device):
    layer = layers.build("rg_lru", D, conv_size=1).to(device).double()
    with torch.no_grad():
        layer.conv.weight.fill_(1)
        layer.input_gate.bias.fill_(100)
    seen = layer(text(device, 4000, 60)).state.memory.flatten(1).var(0)
    heard = layer.x(text(device, 4000, 1)).flatten(1).var(0)
    assert torch.allclose(seen, heard, rtol=0.15)


def test_a_new_layer_has_the_decays_of_the_paper():
    layer = layers.build("rg_lru", 4096)
    decays = torch.exp(-8 * F.softplus(layer.Lambda))
    assert (decays > 0.8999).all() and (decays < 0.9991).all()
    assert abs(decays.mean() - 0.9495) < 0.002 and decays.std() > 0.02
    assert layer.heads == (16, 256) and not layer.decay_gate.bias.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, r"heads=5 does not divide expand \* d_model = 32. Use heads=4"),
        ({"heads": 4, "head_dim": 4}, "heads=4 of head_dim=4 are not .* = 32 channels.*expand=0.5"),
        ({"conv_size": 0}, "conv_size must be an int >= 1"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=f"rg_lru: .*{message}"):
        layers.build("rg_lru", D, **options)
