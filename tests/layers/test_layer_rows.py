"""Masks and packing: what every layer must hold when rows have holes or lie end to end."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sample_layers import BACKENDS, VARIANTS, build, distance, far, forms_of, text

every = pytest.mark.parametrize("variant", VARIANTS)
MASKS = st.lists(st.lists(st.booleans(), min_size=8, max_size=8), min_size=2, max_size=2)


@every
@pytest.mark.sampled(2)
@settings(max_examples=10)
@given(mask=MASKS, backend=st.sampled_from(BACKENDS))
def test_a_masked_step_is_a_no_op_whatever_it_holds(variant, device, mask, backend):
    layer, real = build(variant, device), torch.tensor(mask, device=device)
    x = text(device, 2, 8).masked_fill(~real[..., None], torch.nan).requires_grad_()
    start = layer(text(device, 2, 3)).state.detach()
    y, last = layer(x, start, mask=real, backend=backend)
    assert not y[~real].any()
    for row in range(2):
        alone, state = layer(x[row : row + 1, real[row]], start.select([row]), backend=backend)
        assert distance(y[row : row + 1, real[row]], alone) < 1e-10
        assert far(_trimmed(last.select([row]), state), state) < 1e-10
    (grad,) = torch.autograd.grad(y.square().sum() + last.tensors()[_name(last)].square().sum(), x)
    assert not grad[~real].any() and grad[real].isfinite().all()


def _name(state):
    return next(name for name in state.tensors() if name != "tokens_seen")


def _trimmed(state, like):
    """What grows with the text cut to the text of the row itself, with nothing behind; all else as it is."""
    cut = {}
    for name, x in state.tensors().items():
        if x.ndim > 1:
            length = like.tensors()[name].shape[1]
            assert not x[:, length:].any(), name
            cut[name] = x[:, :length]
    return state.replace(**cut)


@every
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("backend", BACKENDS)
def test_left_padding_changes_nothing(variant, device, dtype, backend):
    layer, x = build(variant, device), text(device, 2, 6)
    mask = torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6], device=device).to(dtype)
    y, state = layer(x, mask=mask, backend=backend)
    alone, last = layer(x[:1, 3:], backend=backend)
    assert distance(y[:1, 3:], alone) < 1e-12
    assert far(_trimmed(state.select([0]), last), last) < 1e-12
    others = torch.cat([text(device, 2, 3) * torch.tensor([1.0, 0.0], device=device)[:, None, None], x[:, 3:]], 1)
    others[1] = x[1]
    assert torch.equal(layer(others, mask=mask, backend=backend).y, y)


@every
def test_a_mask_of_ones_equals_no_mask(variant, device):
    layer, x = build(variant, device), text(device, 2, 7)
    y, state = layer(x, mask=torch.ones(2, 7, device=device))
    plain, last = layer(x)
    assert distance(y, plain) < 1e-12 and far(state, last) < 1e-12


@every
@pytest.mark.sampled(2)
@settings(max_examples=10)
@given(lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4), backend=st.sampled_from(BACKENDS))
def test_packed_sequences_equal_each_alone(variant, device, lengths, backend):
    layer = build(variant, device)
    ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    x = text(device, 1, int(ends[-1]))
    start = layer(text(device, len(lengths), 3)).state
    y, last = layer(x, start, cu_seqlens=ends, backend=backend)
    assert torch.equal(layer(x, start, cu_seqlens=ends.tolist(), backend=backend).y, y)
    for row, (begin, end) in enumerate(zip(ends[:-1], ends[1:], strict=True)):
        alone, state = layer(x[:, begin:end], start.select([row]), backend=backend)
        assert distance(y[:, begin:end], alone) < 1e-10
        assert far(_trimmed(last.select([row]), state), state) < 1e-10


@every
@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_sequences_give_the_gradients_of_a_batch(variant, device, backend):
    layer, x = build(variant, device), text(device, 2, 8).requires_grad_()
    weight = text(device, 2, 8)
    wanted = [x, *layer.parameters()]
    batch = torch.autograd.grad((layer(x, backend=backend).y * weight).sum(), wanted)
    packed, _ = layer(x.reshape(1, 16, -1), cu_seqlens=[0, 8, 16], backend=backend)
    grads = torch.autograd.grad((packed.reshape(2, 8, -1) * weight).sum(), wanted)
    assert max(distance(ours, right) for ours, right in zip(grads, batch, strict=True)) < 1e-10


@pytest.mark.parametrize(("variant", "form"), [(name, form) for name in VARIANTS for form in forms_of(name)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_document_sees_nothing_of_the_one_before_it(variant, device, form, backend):
    layer = build(variant, device, torch.float32)
    x = text(device, 1, 8, torch.float32)
    other = torch.cat([100 * text(device, 1, 3, torch.float32), x[:, 3:]], 1)
    results = []
    for document in (x, other):
        document = document.clone().requires_grad_()
        y, state = layer(document, cu_seqlens=[0, 3, 8], form=form, backend=backend)
        (grad,) = torch.autograd.grad(y[:, 3:].square().sum(), document)
        assert not grad[:, :3].any()
        results.append((y[:, 3:], grad[:, 3:], state.select([1])))
    (y, grad, state), (other_y, other_grad, other_state) = results
    assert torch.equal(y, other_y) and torch.equal(grad, other_grad) and far(state, other_state) == 0


@every
@pytest.mark.parametrize("backend", BACKENDS)
def test_mask_and_packing_hold_together(variant, device, backend):
    layer, x = build(variant, device), text(device, 1, 9)
    mask = torch.tensor([[0, 1, 1, 0, 1, 1, 0, 1, 0]], device=device).bool()
    y, state = layer(x, mask=mask, cu_seqlens=[0, 4, 9], backend=backend)
    for row, (begin, end) in enumerate([(0, 4), (4, 9)]):
        real = mask[0, begin:end]
        alone, last = layer(x[:, begin:end][:, real], backend=backend)
        assert distance(y[:, begin:end][:, real], alone) < 1e-10
        assert far(_trimmed(state.select([row]), last), last) < 1e-10
    assert state.tokens_seen.tolist() == [2, 3]
