"""Systems inside autocast: what is computed there has the numbers and the dtype of what is computed outside."""

import pytest
import torch

from lavagna import lti


def dense(device):
    return lti.System(*lti.hippo("legs", 8, dtype=torch.float32, device=device), torch.randn(8, device=device))


def diagonal(device):
    modes = -torch.rand(8, device=device)
    return lti.System(modes, torch.randn(8, 2, device=device), torch.randn(3, 8, device=device), step=0.1)


CALLS = {
    "dense convolve": lambda d: dense(d).convolve(torch.randn(2, 50, device=d), torch.randn(2, 8, device=d)),
    "dense recur": lambda d: dense(d).recur(torch.randn(2, 50, device=d)),
    "dense step": lambda d: dense(d).step(torch.randn(2, device=d)),
    "dense kernel": lambda d: dense(d).kernel(50),
    "diagonal convolve": lambda d: diagonal(d).convolve(torch.randn(2, 50, 2, device=d), torch.randn(2, 8, device=d)),
    "diagonal recur": lambda d: diagonal(d).recur(torch.randn(2, 50, 2, device=d)),
    "krylov": lambda d: lti.krylov(torch.randn(4, 4, device=d) / 4, torch.randn(4, device=d), 9),
    "diagonal_kernel": lambda d: lti.diagonal_kernel(torch.randn(3, 8, device=d), -torch.rand(3, 8, device=d), 50),
    "online_hippo": lambda d: lti.online_hippo(torch.randn(2, 50, device=d), 8),
    "reconstruct": lambda d: lti.reconstruct(torch.randn(2, 8, device=d), [0.1, 0.5, 0.9]),
}


@pytest.mark.parametrize("call", CALLS)
def test_autocast_changes_no_number_of_a_system(call, device):
    torch.manual_seed(0)
    outside = CALLS[call](device)
    torch.manual_seed(0)
    with torch.autocast(device.type, torch.bfloat16):
        inside = CALLS[call](device)
    pairs = zip(*((x,) if isinstance(x, torch.Tensor) else x for x in (inside, outside)), strict=True)
    assert all(torch.equal(one, other) and one.dtype == other.dtype == torch.float32 for one, other in pairs)
