"""Gradients of zero."""

import torch

from lavagna.modules.joined import joined


def test_a_tensor_is_itself_and_what_was_joined_has_a_gradient_of_zero():
    x, other = torch.randn(2, 3, dtype=torch.bfloat16), torch.full((4,), -torch.inf, requires_grad=True)
    y = joined(x, other, None)
    assert torch.equal(y, x) and y.dtype == x.dtype
    y.sum().backward()
    assert torch.equal(other.grad, torch.zeros(4))
    with torch.no_grad():
        assert joined(x, other) is x
