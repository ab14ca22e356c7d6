"""The LSTM against its recurrence written out and against torch's own."""

import pytest
import torch

from lavagna import layers
from sample_layers import D, build, distance, text


def written_out(layer, x, mask=None):
    """The recurrence of one sequence (t, d), gate by gate; what is shown at the end, and the cell."""
    hidden = cell = torch.zeros(layer.width, dtype=x.dtype, device=x.device)
    outputs = []
    for u in x:
        gates = layer.gates.weight @ u + layer.recurrent.weight @ hidden + layer.gates.bias
        i, f, g, o = gates.reshape(4, layer.width)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        hidden = torch.sigmoid(o) * torch.tanh(cell)
        outputs.append(layer.out.weight @ hidden)
    return torch.stack(outputs), hidden, cell


@pytest.mark.parametrize("variant", ["lstm", "lstm wide"])
@pytest.mark.parametrize("length", [1, 3, 4, 9])
def test_it_is_its_recurrence(variant, device, length):
    layer, x = build(variant, device), text(device, 2, length)
    y, state = layer(x)
    for row in range(2):
        right, hidden, cell = written_out(layer, x[row])
        assert distance(y[row], right) < 1e-12
        assert distance(state.hidden[row], hidden) < 1e-12 and distance(state.cell[row], cell) < 1e-12


@pytest.mark.parametrize("length", [1, 5])
def test_it_is_the_lstm_of_torch_in_values_and_gradients(device, length):
    layer, x = build("lstm wide", device), text(device, 2, length).requires_grad_()
    theirs = torch.nn.LSTM(D, layer.width, batch_first=True).to(device, torch.float64)
    names = {"weight_ih_l0": layer.gates.weight, "weight_hh_l0": layer.recurrent.weight, "bias_ih_l0": layer.gates.bias}
    theirs.load_state_dict(names | {"bias_hh_l0": torch.zeros_like(layer.gates.bias)})
    start = layer(text(device, 2, 3)).state.detach()
    given = [start.hidden.requires_grad_(), start.cell.requires_grad_()]
    y, state = layer(x, start)
    h, (hidden, cell) = theirs(x, (given[0][None], given[1][None]))
    results = []
    for outputs, parameters in (
        ((y, state.hidden, state.cell), list(names.values())),
        ((layer.out(h), hidden[0], cell[0]), [theirs.get_parameter(name) for name in names]),
    ):
        loss = sum((z * torch.linspace(-1, 1, z.numel(), device=device).view_as(z)).sum() for z in outputs)
        results.append([*outputs, *torch.autograd.grad(loss, [x, *given, *parameters])])
    assert max(map(distance, *results)) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [2, 30])
def test_a_row_that_ended_keeps_its_cell_bit_for_bit(device, length, dtype):
    layer = build("lstm", device, dtype)
    start = layer(text(device, 3, 4, dtype)).state
    mask = torch.ones(3, length, device=device)
    mask[0] = 0
    mask[1, 1:] = 0
    x = text(device, 3, length, dtype)
    state = layer(x, start, mask=mask).state
    assert torch.equal(state.cell[0], start.cell[0]) and torch.equal(state.hidden[0], start.hidden[0])
    once = layer(x[:, :1], start, mask=mask[:, :1]).state
    assert distance(state.cell[1], once.cell[1]) < 1e-6 and distance(state.hidden[1], once.hidden[1]) < 1e-6


def test_the_forget_gate_starts_open():
    layer = layers.build("lstm", D, expand=2)
    i, f, g, o = layer.gates.bias.reshape(4, 2 * D)
    assert (f == 1).all() and not torch.stack([i, g, o]).any()


def test_it_remembers_what_its_gates_hold_for_a_thousand_steps(device):
    layer = layers.build("lstm", D).to(device)
    with torch.no_grad():
        layer.gates.weight.zero_()
        layer.recurrent.weight.zero_()
        layer.gates.bias.reshape(4, D)[:2] = torch.tensor([[-100.0], [100.0]], device=device)
    start = layer.initial_state(1).replace(cell=torch.linspace(-3, 3, D, device=device)[None])
    assert torch.equal(layer(text(device, 1, 1000, torch.float32), start).state.cell, start.cell)


def test_a_form_that_needs_an_affine_step_is_refused(device):
    with pytest.raises(ValueError, match="lstm: form must be one of recurrent or auto, but came as 'scan'"):
        build("lstm", device)(text(device, 1, 2), form="scan")
