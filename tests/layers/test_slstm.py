"""sLSTM against its recurrence in plain terms, its loop against one that autograd follows, and its initial values."""

import pytest
import torch
import torch.nn.functional as F

from lavagna import layers
from lavagna.layers import slstm
from sample_layers import D, build, convolved, distance, far, text

GATES = ("input_gate", "forget_gate", "cell_input", "output_gate")


def written_out(layer, x):
    """One sequence (t, d) without a stabilizer: outputs, and the last hidden, cell and normalizer (h, d)."""
    heads, size = layer.heads
    u = x if layer.conv is None else F.silu(convolved(x, layer.conv.weight, layer.conv.bias))
    W = [torch.block_diag(*getattr(layer, gate).weight) for gate in GATES]
    R = [torch.block_diag(*part) for part in layer.recurrent.weight.unflatten(1, (4, size)).unbind(1)]
    b = layer.bias.flatten(1)
    h, c, n = torch.zeros(3, D, dtype=x.dtype, device=x.device)
    shown = []
    for t in range(len(x)):
        i, f, z, o = (W[j] @ (u[t] if j < 2 else x[t]) + R[j] @ h + b[j] for j in range(4))
        f = 1 / (1 + (-f).exp())
        c, n = f * c + i.exp() * z.tanh(), f * n + i.exp()
        h = c / n / (1 + (-o).exp())
        shown.append(h)
    y = torch.stack(shown).unflatten(-1, (heads, size))
    y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, keepdim=True, correction=0) + layer.norm.eps).sqrt()
    return y.flatten(1) * (1 + layer.norm.weight), [one.unflatten(0, (heads, size)) for one in (h, c, n)]


@pytest.mark.parametrize("variant", ["slstm", "slstm heads"])
def test_it_is_its_recurrence_in_plain_terms(device, variant):
    layer, x = build(variant, device), text(device, 2, 9)
    y, state = layer(x)
    rights, lasts = zip(*(written_out(layer, row) for row in x), strict=True)
    assert distance(y, torch.stack(rights)) < 1e-12
    unit = state.stabilizer.exp()
    ours = (state.hidden, state.cell * unit, state.normalizer * unit)
    for one, right in zip(ours, zip(*lasts, strict=True), strict=True):
        assert distance(one, torch.stack(right)) < 1e-12


def inputs(device, *, t=6, scale=1.0, dtype=torch.float64):
    """What the loop is given: steps, mixing matrices, and a state that something was written to."""
    generator = torch.Generator(device).manual_seed(3)

    def draw(*shape):
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    h, n, d = 2, 3, 4
    pair = torch.stack([draw(h, n, d), 1 + draw(h, n, d).abs()])
    drawn = (scale * draw(t, h, n, 4 * d), draw(h, d, 4 * d), draw(h, n, d), pair, draw(h, n, d))
    return [x.requires_grad_() for x in drawn]


@pytest.mark.parametrize("scale", [1.0, 200.0, 1000.0])
def test_the_loop_equals_the_one_that_autograd_follows(scale, device):
    given = inputs(device, scale=scale)
    loops = [slstm._loop, slstm._unrolled]
    (shown, pair, m), right = (loop(*given) for loop in loops)
    for one, other in zip((shown, pair, m), right, strict=True):
        assert distance(one, other) < 1e-13
    with torch.no_grad():
        assert all(map(torch.equal, slstm._loop(*given), (shown, pair, m)))
    weights = torch.randn_like(shown), torch.randn_like(pair)
    grads = [
        torch.autograd.grad(sum((x * w).sum() for x, w in zip(out, weights, strict=False)), given)
        for out in ((shown, pair), right[:2])
    ]
    for one, other in zip(*grads, strict=True):
        assert one.isfinite().all() and torch.allclose(one, other, rtol=1e-10, atol=1e-12)


def test_the_backward_pass_is_the_derivative(device):
    """Of what doesn't depend on the unit e^m: what is shown, and the memory in plain terms."""

    def plain(*given):
        shown, pair, m = slstm._loop(*given)
        return shown, pair * m.exp()

    assert torch.autograd.gradcheck(plain, inputs(device, t=3))


def test_no_matter_how_large_gates_are_all_is_finite(device):
    layer, x = layers.build("slstm", D).to(device), text(device, 2, 40, torch.float32)
    with torch.no_grad():
        for gate in GATES[:2]:
            getattr(layer, gate).weight.normal_(std=300)
        layer.recurrent.weight.normal_(std=0.3)
    y, state = layer(x)
    assert all(tensor.isfinite().all() for tensor in (y, *state.tensors().values()))
    assert (state.normalizer >= 1).all()
    loss = y.square().sum()
    assert all(grad.isfinite().all() for grad in torch.autograd.grad(loss, list(layer.parameters())))


def test_a_row_that_starts_stands_beside_one_that_goes_on(device):
    """The published cell asks of the whole batch whether it starts; a row is asked here."""
    layer, x = build("slstm", device), text(device, 2, 5)
    _, before = layer(text(device, 1, 3))
    fresh = layer.initial_state(1)
    both = before.replace(
        **{name: torch.cat([tensor, fresh.tensors()[name]]) for name, tensor in before.tensors().items()}
    )
    y, last = layer(x, both)
    for row, start in enumerate((before, None)):
        alone, state = layer(x[row : row + 1], start)
        assert distance(y[row : row + 1], alone) < 1e-12 and far(last.select([row]), state) < 1e-12


def test_cells_of_one_head_do_not_see_those_of_another(device):
    layer = build("slstm heads", device)
    x = text(device, 1, 6)
    other = x.clone()
    other[..., : D // 4] += 1
    (y, _), (changed, _) = layer(x), layer(other)
    assert torch.equal(y[..., D // 4 :], changed[..., D // 4 :]) and not torch.equal(y, changed)


def test_a_new_layer_has_the_gates_of_the_paper():
    first, last = (layers.build("slstm", 64, head_dim=16, layer_index=index, depth=3) for index in (0, 2))
    ramp = torch.arange(16) / 15
    assert torch.allclose(first.bias[1], (5 - 12 * ramp**0.3).expand(4, 16))
    assert torch.allclose(last.bias[1], (5 - 12 * ramp**1.6).expand(4, 16))
    assert not first.bias[[0, 2, 3]].any() and not first.recurrent.weight.any()
    assert first.cell_input.weight.std().item() == pytest.approx((2 / (5 * 64)) ** 0.5, rel=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 2, "head_dim": 8}, "heads=2 times head_dim=8 must be d_model = 32"),
        ({"heads": 5}, "heads=5 does not divide d_model = 32"),
        ({"layer_index": -1}, "layer_index must be an int >= 1, but came as -1"),
    ],
)
def test_options_that_cannot_be_say_why(options, message):
    with pytest.raises(ValueError, match=message):
        layers.build("slstm", D, **options)


def test_a_state_kept_in_float16_leaves_no_nan_in_the_gradient_of_a_row_without_a_step(device):
    layer = build("slstm", device, torch.float32)
    x = text(device, 2, 5, torch.float32)
    mask = torch.tensor([[0] * 5, [1] * 5], device=device)
    y, state = layer(x, layer.initial_state(2).to(torch.float16), mask=mask)
    (y.sum() + state.cell.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in layer.parameters() if parameter.grad is not None)
    assert torch.equal(y, layer(x, mask=mask).y)
