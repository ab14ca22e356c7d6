"""What every layer must hold, whatever its rule: cuts, forms, causality, state."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lavagna as lv
from lavagna import layers
from lavagna.kernels import describe, serves
from sample_layers import BACKENDS, VARIANTS, D, build, distance, far, text, ways_of

every = pytest.mark.parametrize("variant", VARIANTS)


def run_cut(layer, x, cuts, state=None, **options):
    """Run a sequence in pieces that end at `cuts`; all outputs and the last state."""
    outputs = []
    for start, end in pairwise([0, *cuts, x.shape[1]]):
        y, state = layer(x[:, start:end], state, **options)
        outputs.append(y)
    return torch.cat(outputs, 1), state


@every
@settings(max_examples=10)
@given(cuts=st.lists(st.integers(0, 11), max_size=5).map(sorted), backend=st.sampled_from(BACKENDS))
def test_any_cut_of_a_sequence_equals_the_whole(variant, device, cuts, backend):
    layer, x = build(variant, device), text(device, 2, 11)
    _, start = layer(text(device, 2, 3))
    whole, last = layer(x, start, backend=backend)
    pieces, carried = run_cut(layer, x, cuts, start, backend=backend)
    assert distance(pieces, whole) < 1e-10
    assert far(carried, last) < 1e-10


@every
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_every_form_equals_the_float64_recurrence(variant, device, dtype, tolerance):
    layer, x = build(variant, device, dtype), text(device, 2, 70, dtype)
    _, start = layer(text(device, 2, 3, dtype))
    reference = build(variant, device)
    reference.load_state_dict(layer.state_dict())
    y, last = reference(x.double(), start.to(torch.float64), form="recurrent", backend="torch")
    for way in ways_of(layer):
        ours, state = layer(x, start, form=way[0], backend=way[1])
        assert distance(ours.double(), y) < tolerance, way
        assert far(state, last) < tolerance, way


@pytest.mark.skipif(not serves("cpu"), reason=describe("cpu"))
def test_all_layers_but_four_have_a_kernel():
    without = [name for name in layers.names() if ("auto", "cpu") not in ways_of(layers.build(name, D))]
    assert sorted(without) == ["hyena", "lssl", "lstm", "softmax_attention"]


@every
def test_no_output_depends_on_a_later_token(variant, device):
    layer, x = build(variant, device), text(device, 1, 9)
    later = torch.cat([x[:, :5], 10 * text(device, 1, 4)], 1)
    for form, backend in ways_of(layer):
        one, other = (layer(each, form=form, backend=backend).y[:, :5] for each in (x, later))
        assert torch.equal(one, other), (form, backend)


@every
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_flow_through_cuts(variant, device, backend):
    layer, x = build(variant, device), text(device, 2, 10).requires_grad_()
    weight = text(device, 2, 10)
    wanted = [x, *layer.parameters()]
    whole = torch.autograd.grad((layer(x, backend=backend).y * weight).sum(), wanted)
    for cuts in ([3, 8], list(range(1, 7))):
        cut = torch.autograd.grad((run_cut(layer, x, cuts, backend=backend)[0] * weight).sum(), wanted)
        assert max(distance(ours, right) for ours, right in zip(cut, whole, strict=True)) < 1e-9


@every
def test_gradients_reach_every_tensor_of_the_state_before(variant, device):
    layer = build(variant, device)
    state = layer(text(device, 2, 4)).state.detach()
    leaves = {name: x.requires_grad_() for name, x in state.clone().tensors().items() if name != "tokens_seen"}
    y, last = layer(text(device, 2, 3), state.replace(**leaves))
    loss = y.square().sum() + sum(x.square().sum() for name, x in last.tensors().items() if name != "tokens_seen")
    assert all(grad.abs().sum() > 0 for grad in torch.autograd.grad(loss, list(leaves.values())))


@every
def test_a_detached_state_cuts_the_gradient_and_nothing_else(variant, device):
    layer, x = build(variant, device), text(device, 1, 8).requires_grad_()
    state = layer(x[:, :5]).state
    assert torch.equal(layer(x[:, 5:], state.detach()).y, layer(x[:, 5:], state).y)
    (grad,) = torch.autograd.grad(layer(x[:, 5:], state.detach()).y.sum(), x)
    assert not grad[:, :5].any() and grad[:, 5:].any()


@every
@pytest.mark.parametrize("length", [0, 1, 6])
def test_what_the_caller_gave_is_neither_changed_nor_shared(variant, device, length):
    layer, x = build(variant, device), text(device, 2, length)
    state = layer(text(device, 2, 4)).state
    before, x_before = state.clone(), x.clone()
    parameters = [parameter.clone() for parameter in layer.parameters()]
    _, after = layer(x, state)
    assert far(state, before) == 0 and torch.equal(x, x_before)
    assert all(map(torch.equal, parameters, layer.parameters()))
    given = {tensor.untyped_storage().data_ptr() for tensor in (x, *state.tensors().values())} - {0}
    assert not given & {tensor.untyped_storage().data_ptr() for tensor in after.tensors().values()}


@every
def test_no_tokens_leave_the_state_as_it_was(variant, device):
    layer = build(variant, device)
    state = layer(text(device, 2, 4)).state
    y, after = layer(text(device, 2, 0), state)
    assert y.shape == (2, 0, D) and far(after, state) == 0
    assert far(layer(text(device, 2, 0)).state, layer.initial_state(2)) == 0


@every
def test_on_the_meta_device_a_layer_tells_its_shapes(variant, device):
    layer, x = build(variant, device), text(device, 2, 5)
    y, state = layer(x)
    y_outline, state_outline = layer.to("meta")(x.to("meta"))
    assert y_outline.shape == y.shape and y_outline.is_meta
    shapes = {name: tensor.shape for name, tensor in state.tensors().items()}
    assert {name: tensor.shape for name, tensor in state_outline.tensors().items()} == shapes


@every
def test_the_state_of_a_layer_of_other_sizes_is_refused(variant, device):
    name, options = VARIANTS[variant]
    layer = build(variant, device)
    # The state of S5 doesn't depend on the width.
    options = options | ({"d_state": 24} if name == "s5" else {})
    other = layers.build(name, 2 * D, **options).to(device, torch.float64)
    with pytest.raises(ValueError, match=f"{name}: this layer's state has, .* of other sizes made it"):
        layer(text(device, 2, 5), other.initial_state(2))


@every
def test_a_batch_of_none_is_legal(variant, device):
    layer = build(variant, device)
    for form, backend in ways_of(layer):
        y, state = layer(text(device, 0, 3), form=form, backend=backend)
        again, last = layer(text(device, 0, 20), state, form=form, backend=backend)
        assert y.shape == (0, 3, D) and again.shape == (0, 20, D), (form, backend)
        assert state.tokens_seen.shape == last.tokens_seen.shape == (0,), (form, backend)


@every
@pytest.mark.parametrize("length", [1, 20])
def test_a_state_of_another_precision_is_cast(variant, device, length):
    layer, x = build(variant, device), text(device, 2, length)
    _, state = layer(text(device, 2, 3))
    narrow = layer(x, state.to(torch.float32))
    assert narrow.y.dtype == torch.float64 and distance(narrow.y, layer(x, state).y) < 1e-4
    wide = layer.float()(x.float(), state)
    assert wide.y.dtype == torch.float32 and distance(wide.y, narrow.y.float()) < 1e-3


@every
def test_rows_picked_from_a_state_go_on_as_their_own_history(variant, device):
    layer, x, more = build(variant, device), text(device, 3, 6), text(device, 3, 5)
    picked = layer(x).state.select([2, 0, 0])
    y, last = layer(more, picked)
    for row, source in enumerate((2, 0, 0)):
        history = torch.cat([x[source : source + 1], more[row : row + 1]], 1)
        alone, state = layer(history)
        assert distance(y[row : row + 1], alone[:, 6:]) < 1e-10
        assert far(last.select([row]), state) < 1e-10


@every
def test_a_state_that_was_saved_goes_on_bit_for_bit(variant, device, tmp_path):
    layer = build(variant, device)
    state = layer(text(device, 2, 5)).state
    state.save(tmp_path / "state")
    x = text(device, 2, 4)
    y, last = layer(x, state)
    again, last_again = layer(x, lv.load_state(tmp_path / "state", device=device))
    assert torch.equal(y, again) and far(last_again, last) == 0


@every
def test_a_prefill_that_is_long_keeps_no_more_than_the_state(variant, device):
    state = build(variant, device)(text(device, 1, 40)).state
    for name, tensor in state.tensors().items():
        assert tensor.untyped_storage().nbytes() <= tensor.nbytes, name


def test_tokens_are_counted(device):
    layer = build("gated_delta_net", device)
    _, state = layer(text(device, 2, 5))
    mask = torch.tensor([[1, 0, 1], [0, 0, 0]], device=device)
    assert layer(text(device, 2, 3), state, mask=mask).state.tokens_seen.tolist() == [7, 5]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda layer, x: layer(x[..., :7]), r"gla: x must be \(b, t, d\) with d = 32, but came as \(1, 4, 7\)"),
        (lambda layer, x: layer(x[0]), r"gla: x must be \(b, t, d\)"),
        (lambda layer, x: layer(x.float()), "gla: x is torch.float32, but the layer's weights are torch.float64"),
        (lambda layer, x: layer(x, form="tree"), "gla: form must be one of recurrent, scan, chunkwise, parallel"),
        (lambda layer, x: layer(x, backend="triton"), "triton"),
        (lambda layer, x: layer(x, layers.build("delta_net", D).initial_state(1)), "the state of delta_net"),
        (lambda layer, x: layer(x, layer.initial_state(2)), "the state has 2 rows, but the call has 1 sequences"),
        (lambda layer, x: layer(x.expand(2, -1, -1), cu_seqlens=[0, 4]), "b must be 1"),
    ],
)
def test_a_call_that_does_not_fit_says_why(device, call, message):
    with pytest.raises(ValueError, match=message):
        call(build("gla", device), text(device, 1, 4))


@every
def test_a_keyword_that_does_not_exist_is_a_type_error(variant, device):
    with pytest.raises(TypeError):
        build(variant, device)(text(device, 1, 4), cu_seqlen=[0, 4])


@every
def test_a_backend_that_is_not_there_raises(variant, device):
    with pytest.raises(ValueError, match="triton"):
        build(variant, device)(text(device, 1, 4), backend="triton")


@every
def test_a_backend_that_nothing_is_called_by_is_refused_with_those_there_are(variant, device):
    with pytest.raises(ValueError, match="backend must be one of torch, cpu, triton or auto, but came as 'cuda'"):
        build(variant, device)(text(device, 1, 4), backend="cuda")
