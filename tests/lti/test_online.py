"""A signal compressed online and told again: the operators step by step, and how much is lost."""

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from numpy.polynomial import Legendre

from lavagna.lti import hippo, online_hippo, reconstruct
from lavagna.lti.discretize import METHODS
from lavagna.lti.hippo import KINDS


def signals(count: int, times: torch.Tensor, *, seed: int = 0) -> torch.Tensor:
    """Sums of 7 harmonics with normal amplitudes and uniform phases."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.randn(count, 7, 1, generator=generator, dtype=torch.float64)
    phase = 2 * math.pi * torch.rand(count, 7, 1, generator=generator, dtype=torch.float64)
    turns = 2 * math.pi * (torch.arange(1, 8)[:, None] * times)
    return (size * torch.sin(turns + phase)).sum(1)


def middles(length: int) -> torch.Tensor:
    return (torch.arange(length, dtype=torch.float64) + 0.5) / length


def lost(told: torch.Tensor, f: torch.Tensor) -> float:
    """The median of the relative L2 error."""
    return ((told - f).norm(dim=-1) / f.norm(dim=-1)).median().item()


def rule(A: np.ndarray, B: np.ndarray, step: float, method: str, length: float) -> tuple[np.ndarray, np.ndarray]:
    """One step as it is printed; `length` is the step of the rules with an exponential."""
    one = np.eye(len(A))
    if method in ("zoh", "mamba"):
        Ab = scipy.linalg.expm(length * A)
        return Ab, np.linalg.solve(A, (Ab - one) @ B) if method == "zoh" else length * B
    share = {"euler": 0.0, "bilinear": 0.5, "backward_euler": 1.0}[method]
    left = np.linalg.inv(one - share * step * A)
    return left @ (one + (1 - share) * step * A), left @ (step * B)


@pytest.mark.parametrize("method", METHODS)
def test_legs_takes_the_printed_step_at_each_t(method, device):
    A, B = (part.numpy() for part in hippo("legs", 5))
    f = torch.randn(200, dtype=torch.float64)
    x, states = np.eye(5)[0] * f[0].item(), []
    for t, sample in enumerate(f.tolist(), start=1):
        Ab, Bb = rule(A, B, 1 / t, method, math.log((t + 1) / t))
        x = Ab @ x + Bb * sample
        states.append(x)
    found = online_hippo(f.to(device), 5, method=method).cpu().numpy()
    assert np.allclose(found, np.stack(states), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["legt", "lagt"])
def test_the_others_take_the_same_step_again_and_again(kind, method, device):
    A, B = (part.numpy() for part in hippo(kind, 6))
    f = torch.randn(50, dtype=torch.float64)
    Ab, Bb = rule(A, B, 0.04, method, 0.04)
    x, states = np.zeros(6), []
    for sample in f.tolist():
        x = Ab @ x + Bb * sample
        states.append(x)
    found = online_hippo(f.to(device), 6, kind=kind, method=method, step=0.04).cpu().numpy()
    assert np.allclose(found, np.stack(states), rtol=1e-10, atol=1e-12)


def test_zero_order_hold_of_legs_is_the_projection_of_the_staircase_of_samples(device):
    # The clock starts one sample early, with the first sample: f_1 lies on [0, 2], then f_t on [t, t + 1].
    f = torch.randn(40, dtype=torch.float64, device=device)
    edges = np.array([0.0, *range(2, 42)]) / 41
    wanted = []
    for n in range(12):
        area = (math.sqrt(2 * n + 1) * Legendre.basis(n, domain=[0, 1])).integ()
        wanted.append((f.cpu().numpy() * np.diff(area(edges))).sum())
    found = online_hippo(f, 12, method="zoh")[-1].cpu().numpy()
    assert np.allclose(found, wanted, rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_one_sample_is_remembered_as_a_constant(method, device):
    found = online_hippo(torch.full((1,), 3.0, device=device).double(), 8, method=method)
    if method != "mamba":
        told = reconstruct(found, middles(5).to(device))
        assert torch.allclose(told, torch.full_like(told, 3.0), rtol=0, atol=1e-13)
    assert found.shape == (1, 8)


@pytest.mark.parametrize("times", [middles(1000), torch.linspace(0, 1, 1000, dtype=torch.float64)])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_thousand_samples_come_back_from_64_coefficients_of_legs(seed, times, device):
    f = signals(20, times, seed=seed).to(device)
    told = reconstruct(online_hippo(f, 64, method="bilinear")[:, -1], times.to(device))
    assert lost(told, f) < 2.5e-2


@pytest.mark.parametrize(
    ("kind", "method", "most"),
    [
        ("legs", "zoh", 0.02),
        ("legs", "backward_euler", 0.1),
        ("legt", "bilinear", 0.03),
        ("legt", "zoh", 0.03),
        ("lagt", "bilinear", 0.05),
        ("fout", "bilinear", 0.06),
    ],
)
def test_a_signal_comes_back_from_every_basis(kind, method, most, device):
    times = middles(1000).to(device)
    f = signals(20, middles(1000)).to(device)
    told = reconstruct(online_hippo(f, 64, kind=kind, method=method)[:, -1], times, kind=kind)
    assert lost(told, f) < most


@pytest.mark.parametrize("kind", ["legt", "fout"])
def test_a_window_tells_its_own_length_of_a_longer_past_and_forgets_the_rest(kind, device):
    f = signals(20, 3 * middles(1500)).to(device)
    told = reconstruct(online_hippo(f, 64, kind=kind, step=2 / 500)[:, -1], middles(500).to(device), kind=kind)
    assert lost(told, f[:, -500:]) < 0.06
    f[:, 1000:] = 0
    for one, low, high in ((kind, 0, 0.1), ("legs", 0.5, 1)):
        memory = online_hippo(f, 64, kind=one, step=None if one == "legs" else 2 / 500).norm(dim=-1)
        assert low < (memory[:, -1] / memory[:, 999]).median() < high


@pytest.mark.parametrize("method", ["bilinear", "zoh"])
def test_dilating_the_signal_dilates_the_memory_of_legs(method, device):
    # A shift by at most one sample of the shorter moves coefficients by at most the norm of the slope over its length.
    lengths = (250, 500, 1000)
    ends = [online_hippo(signals(6, middles(length)).to(device), 32, method=method)[:, -1] for length in lengths]
    fine = signals(6, middles(8000))
    slope = 8000 * fine.diff().square().mean(-1).sqrt().to(device)
    gaps = [(one - other).norm(dim=-1) for one, other in zip(ends, ends[1:], strict=False)]
    assert (gaps[0] < slope / 250).all() and (gaps[1] < slope / 500).all()
    assert (gaps[1] < 0.6 * gaps[0]).all()


def test_repeating_each_sample_leaves_the_memory_of_legs_where_it_was_and_moves_that_of_a_window(device):
    f = signals(6, middles(1000)).to(device)
    twice = f.repeat_interleave(2, -1)
    slope = 1000 * f.diff().square().mean(-1).sqrt()
    gap = (online_hippo(twice, 32)[:, -1] - online_hippo(f, 32)[:, -1]).norm(dim=-1)
    assert (gap < slope / 1000).all()
    window = [online_hippo(x, 32, kind="legt", step=2 / 1000)[:, -1] for x in (f, twice)]
    assert ((window[0] - window[1]).norm(dim=-1) > 20 * gap).all()


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_flow_from_what_is_told_to_each_sample(kind, device):
    f = torch.randn(2, 6, dtype=torch.float64, device=device, requires_grad=True)
    times = middles(4).to(device)
    assert torch.autograd.gradcheck(lambda f: reconstruct(online_hippo(f, 4, kind=kind), times, kind=kind), f)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_stays_float32_and_near_float64(kind, device):
    f = signals(3, middles(300)).to(device)
    exact, found = online_hippo(f, 16, kind=kind), online_hippo(f.float(), 16, kind=kind)
    assert found.dtype == torch.float32 and (found - exact).abs().max() < 1e-4
    told = reconstruct(found, middles(7).tolist(), kind=kind)
    assert told.dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_each_signal_of_a_batch_is_compressed_by_itself_and_none_without_samples(kind, device):
    f = torch.randn(2, 3, 10, dtype=torch.float64, device=device)
    found = online_hippo(f, 4, kind=kind)
    assert torch.allclose(found[1, 2], online_hippo(f[1, 2], 4, kind=kind), rtol=0, atol=1e-14)
    assert online_hippo(f[..., :0], 4, kind=kind).shape == (2, 3, 0, 4)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kind": "legs", "step": 0.1}, "legs.*takes none.*0.1. Leave it out"),
        ({"kind": "legz"}, "online_hippo.*legs, legt, lagt, fout.*'legz'"),
        ({"method": "tustin"}, "online_hippo.*zoh, bilinear.*'tustin'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, said):
    with pytest.raises(ValueError, match=said) as caught:
        online_hippo(torch.zeros(3), 4, **options)
    assert "\n" not in str(caught.value)


def test_coefficients_of_no_basis_are_refused_by_name():
    with pytest.raises(ValueError, match="^reconstruct: .*in pairs.*5. Use 6"):
        reconstruct(torch.zeros(5), [0.5], kind="fout")


@pytest.mark.parametrize("f", [torch.arange(5), torch.tensor(1.0)])
def test_counts_and_single_numbers_are_no_signal(f):
    with pytest.raises(ValueError, match=r"online_hippo: f must be floating \(.., t\)"):
        online_hippo(f, 2)


def test_a_single_time_is_asked_for_in_a_list(device):
    with pytest.raises(ValueError, match="reconstruct: times must be a list"):
        reconstruct(torch.randn(3, 4, device=device), torch.tensor(0.5))
