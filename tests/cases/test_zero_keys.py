"""Tokens whose keys are zero: the delta rules have nothing to correct and nothing to divide by."""

import pytest
import torch

from sample_layers import D, made, ways_of

KEEPING = {
    "delta_net": {},
    "delta_product": {},
    "fast_weight": {},
    "longhorn": {},
    "longhorn diagonal": {"transition": "diagonal"},
}
FADING = {"gated_delta_net": {}, "kda": {}, "delta_product": {"fading": True}}
CASES = [(name.split()[0], options, True) for name, options in KEEPING.items()]
CASES += [(name, options, False) for name, options in FADING.items()]


@pytest.mark.parametrize(("name", "options", "keeps"), CASES)
def test_they_leave_a_memory_as_it_is_with_finite_gradients(name, options, keeps, device):
    layer = made(name, device, **options)
    with torch.no_grad():
        for part in ("qkv.conv.bias", "conv.bias"):
            if part in dict(layer.named_parameters()):
                layer.get_parameter(part).zero_()
    start = layer.initial_state(1)
    start = start.replace(memory=torch.full_like(start.memory, 5).requires_grad_())
    x = torch.zeros(1, 6, D, device=device, dtype=torch.float64, requires_grad=True)
    for way in ways_of(layer):
        y, state = layer(x, start, form=way[0], backend=way[1])
        if keeps:
            assert torch.allclose(state.memory, start.memory, atol=1e-12), way
        else:
            assert (state.memory < 5).all() and (state.memory > 0).all(), way
        loss = state.memory.sum() + y.square().sum()
        wanted = [x, start.memory, *layer.parameters()]
        grads = torch.autograd.grad(loss, wanted, allow_unused=True)
        assert all(grad is None or grad.isfinite().all() for grad in grads), way
