"""The numbers behind the pictures of HiPPO."""

import pytest
import torch
from numpy.polynomial import Legendre

from lavagna.lti import hippo, online_hippo
from lavagna.plots import eigenvalues
from lavagna.plots import hippo as filling
from lavagna.reproduce.hippo import middles


def test_what_is_told_is_nearly_the_best_that_so_many_polynomials_can_tell():
    f = filling.signal()
    found = filling.tellings(f, online_hippo(f, filling.DEGREES))
    assert [telling.moment for telling in found] == list(filling.MOMENTS)
    for telling in found:
        times = middles(telling.moment).numpy()
        best = Legendre.fit(times, telling.past.numpy(), filling.DEGREES - 1, domain=[0, 1])(times)
        least = ((torch.from_numpy(best) - telling.past).norm() / telling.past.norm()).item()
        assert least <= telling.error < 1.15 * least + 0.07


def test_the_page_stretches_over_a_longer_past_and_gets_coarser():
    f = filling.signal()
    assert f.square().mean().item() == pytest.approx(1)
    lost = [telling.error for telling in filling.tellings(f, online_hippo(f, filling.DEGREES))]
    assert lost == sorted(lost) and lost[0] < 0.03 and lost[-1] > 0.3


def test_both_sets_of_eigenvalues_are_those_of_the_matrix_and_of_its_normal_part():
    found = eigenvalues.spectra(8)
    for kind, (own, normal) in found.items():
        A, _ = hippo(kind, 8)
        # Their sum is the trace, and the low-rank part lifts the sum of the normal ones.
        assert own.sum().real.item() == pytest.approx(A.trace().item())
        assert normal.real.unique().tolist() == [-0.5 if kind == "legs" else 0]
        for value in own if kind != "lagt" else own[:1]:
            singular = torch.linalg.svdvals(A - value * torch.eye(8, dtype=torch.complex128))
            assert singular[-1] < 1e-12 * singular[0]
    assert torch.equal(found["legs"].matrix.real, -torch.arange(1, 9).double())
