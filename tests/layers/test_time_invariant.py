"""What layers around a linear system share: the block, both directions, every length, any cut."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lavagna as lv
from lavagna.layers.time_invariant import TimeInvariant
from sample_layers import D, distance, text


class Leak(TimeInvariant):
    """A leaky sum a channel, `m_t = 0.9 m_{t-1} + u_t`, read with one number a channel and a direction."""

    name = "leak"

    def __init__(self, d_model, *, bidirectional=False):
        super().__init__(d_model, bidirectional=bidirectional)
        self.C = nn.Parameter(torch.empty(self.directions, d_model))
        self.reset_parameters()

    def reset_parameters(self):
        super().reset_parameters()
        nn.init.normal_(self.C)

    def initial_tensors(self, batch, device, dtype):
        return {"memory": torch.zeros(batch, self.d_model, 1, 1, device=device, dtype=torch.float64)}

    def respond(self, u, memory, steps, direction):
        q = self.C[direction, :, None].expand(*u.shape, 1)
        a = lv.scalar(torch.full((1, 1, 1, 1), 0.9, device=u.device, dtype=u.dtype).log())
        y, memory = steps.recur(a, q, torch.ones_like(q), u.unsqueeze(-1), memory)
        return y.squeeze(-1), memory


def leak(device, **options):
    return Leak(D, **options).to(device, torch.float64)


def written_out(layer, u, turned=lambda x: x.flip(0)):
    """The block by hand for one sequence (t, d)."""

    def answer(u, C):
        memory, y = torch.zeros_like(u[0]), []
        for now in u:
            memory = 0.9 * memory + now
            y.append(C * memory)
        return torch.stack(y) if y else u

    y = answer(u, layer.C[0])
    if layer.bidirectional:
        y = y + answer(u.flip(0), layer.C[1]).flip(0)
    a, b = (F.gelu(y + layer.D * u) @ layer.out.weight.T).chunk(2, -1)
    return a * b.sigmoid()


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_block_is_skip_activation_and_gate(device, bidirectional):
    layer, x = leak(device, bidirectional=bidirectional), text(device, 2, 7)
    assert distance(layer(x).y, torch.stack([written_out(layer, row) for row in x])) < 1e-12


def test_both_directions_step_over_what_is_masked(device):
    layer, x = leak(device, bidirectional=True), text(device, 2, 6)
    mask = torch.tensor([[0, 1, 0, 1, 1, 0], [1] * 6], device=device).bool()
    y = layer(x.masked_fill(~mask[..., None], torch.nan), mask=mask).y
    assert not y[~mask].any()
    for row in range(2):
        assert distance(y[row, mask[row]], written_out(layer, x[row, mask[row]])) < 1e-12


def test_both_directions_stay_within_a_packed_sequence(device):
    layer, x = leak(device, bidirectional=True), text(device, 1, 9)
    mask = torch.tensor([[1, 1, 0, 1, 1, 1, 1, 0, 1]], device=device).bool()
    for given in (None, mask):
        y = layer(x, cu_seqlens=[0, 4, 4, 9], mask=given).y[0]
        for begin, end in ((0, 4), (4, 9)):
            real = torch.ones(9, device=device).bool() if given is None else mask[0]
            real = real & (torch.arange(9, device=device) >= begin) & (torch.arange(9, device=device) < end)
            assert distance(y[real], written_out(layer, x[0, real])) < 1e-12


def test_a_bidirectional_layer_returns_no_state_and_refuses_one(device):
    layer, x = leak(device, bidirectional=True), text(device, 1, 5)
    assert layer(x).state is None
    with pytest.raises(ValueError, match="leak: a bidirectional layer takes no state"):
        layer(x, leak(device).initial_state(1))
