"""States carried through training: segments, truncation, losses on the last state, reading once more what was read."""

from itertools import pairwise

import pytest
import torch

import lavagna as lv
from sample_layers import BACKENDS, VARIANTS, D, build, distance, text
from transitions import EVERY_WAY, TRANSITIONS, Sizes, call, difference, leaves

every = pytest.mark.parametrize("variant", VARIANTS)


@pytest.fixture
def anomalies():
    """A gradient that is NaN anywhere on its way, or a tensor changed after it was saved, is an error."""
    with torch.autograd.set_detect_anomaly(True):
        yield


def in_pieces(layer, x, sizes, state=None, **options):
    """All outputs and the last state of a text read piece by piece, the older states held and compared at the end."""
    held, outputs = [], []
    for piece in x.split(sizes, 1):
        y, state = layer(piece, state, **options)
        outputs.append(y)
        held.append((state, state.clone()))
    for old, copy in held:
        assert all(torch.equal(tensor, copy.tensors()[name]) for name, tensor in old.tensors().items())
    return torch.cat(outputs, 1), state


@every
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("anomalies")
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_backward_pass_through_segments_is_that_of_the_whole_text(variant, device, backend):
    layer, x = build(variant, device).train(), text(device, 2, 15).requires_grad_()
    weight, wanted = text(device, 2, 15), [x, *layer.parameters()]
    whole = torch.autograd.grad((layer(x, backend=backend).y * weight).sum(), wanted)
    y, _ = in_pieces(layer, x, [5, 5, 1, 1, 1, 1, 1], backend=backend)
    pieces = torch.autograd.grad((y * weight).sum(), wanted)
    assert max(distance(ours, right) for ours, right in zip(pieces, whole, strict=True)) < 1e-9


@every
@pytest.mark.sampled(3)
@pytest.mark.usefixtures("anomalies")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_detached_state_trains_as_truncation_by_hand_does(variant, device, backend):
    x, results = text(device, 2, 15), []
    for by_hand in (False, True):
        torch.manual_seed(1)
        layer = build(variant, device).train()
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        state = None
        for start, end in pairwise([0, 5, 10, 15]):
            if by_hand and state is not None:
                numbers = {
                    name: torch.tensor(tensor.tolist(), dtype=tensor.dtype, device=device)
                    for name, tensor in state.tensors().items()
                }
                state = lv.state.State(state.kind, numbers)
            y, after = layer(x[:, start:end], state, backend=backend)
            optimizer.zero_grad()
            y.square().mean().backward()
            optimizer.step()
            state = after.detach()
        results.append([parameter.detach() for parameter in layer.parameters()])
    assert max(map(distance, *results)) < 1e-12


@EVERY_WAY
@pytest.mark.parametrize("name", TRANSITIONS)
@pytest.mark.parametrize("what", ["output", "state", "both", "start alone"])
def test_packed_sequences_pass_each_gradient_of_output_and_state(form, backend, name, what, device):
    some = call(name, Sizes(b=1, t=9, h=1, hv=2), device=device)
    starts = torch.randn(3, 2, 3, 5, dtype=torch.float64, device=device)
    wanted = [starts] if what == "start alone" else [*leaves(some)[:-1], starts]
    for x in wanted:
        x.requires_grad_()

    def loss(output, state):
        reads = {"output": [output], "state": [state]}.get(what, [output, state])
        return sum(x.abs().square().sum() for x in reads)

    packed = loss(*lv.recur(*some[:4], starts, form=form, backend=backend, cu_seqlens=[0, 4, 4, 9]))
    grads = torch.autograd.grad(packed, wanted, allow_unused=True, materialize_grads=True)

    def cut(x, i, j):
        return x if x.shape[1] == 1 else x[:, i:j]

    apart = 0
    for row, (i, j) in enumerate([(0, 4), (4, 4), (4, 9)]):
        # The keys of the transition and of the call stay one tensor where they are one.
        parts = {id(x): cut(x, i, j) for x in leaves(some)[:-1]}
        own = (some.a.map(lambda x, parts=parts: parts[id(x)]), *(parts[id(x)] for x in some[1:4]))
        apart = apart + loss(*lv.recur(*own, starts[row : row + 1], form="recurrent", backend="torch"))
    right = torch.autograd.grad(apart, wanted, allow_unused=True, materialize_grads=True)
    assert all(difference(one, other) < 1e-10 for one, other in zip(grads, right, strict=True))
    if what != "output":
        assert grads[-1][1].abs().sum() > 0


@EVERY_WAY
def test_the_state_of_mamba_2_holds_what_was_written_with_its_key(form, backend, device):
    layer = build("mamba2 grouped", device)
    with torch.no_grad():
        layer.A_log.fill_(-torch.inf)
        layer.step.weight.zero_()
        layer.conv.weight.zero_()
        layer.conv.bias.fill_(3.0)
    state = layer(text(device, 1, 4), form=form, backend=backend).state
    one = torch.nn.functional.silu(torch.tensor(3.0, dtype=torch.float64, device=device))
    dt = torch.nn.functional.softplus(layer.dt_bias).clamp(*layer.dt_limit)
    right = (4 * dt * one * one)[None, :, None, None].expand_as(state.memory)
    assert distance(state.memory, right) < 1e-12


@pytest.mark.usefixtures("anomalies")
def test_a_model_that_is_trained_with_its_state_left_on_has_no_fault(device):
    layers = ["gated_delta_net", "mamba2", "softmax_attention"]
    model = lv.LanguageModel(lv.ModelConfig(layer=layers, d_model=D, depth=3, vocab_size=13)).to(device).train()
    ids, state = torch.randint(13, (2, 15), device=device), None
    total = 0.0
    for piece in ids.split(5, 1):
        logits, state = model(piece, state)
        total = total + logits.logsumexp(-1).sum()
    total.backward()
    segments = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(ids).logits.logsumexp(-1).sum().backward()
    for ours, parameter in zip(segments, model.parameters(), strict=True):
        assert distance(ours, parameter.grad) < 1e-4
