"""Normal plus low rank: HiPPO's matrices come back, and the normal part is normal to the last digit."""

import math

import pytest
import torch

import lavagna as lv
from lavagna.lti.hippo import KINDS

SIZES = [(kind, n) for kind in KINDS for n in (1, 2, 3, 64, 255, 256) if kind != "fout" or n % 2 == 0]


@pytest.mark.parametrize(("kind", "n"), SIZES)
def test_the_matrix_and_the_input_come_back(kind, n):
    A, B = lv.lti.hippo(kind, n)
    Lambda, P, B_in_basis, V = lv.lti.nplr(kind, n)
    back = V @ (Lambda.diag() - P.mH @ P) @ V.mH
    assert (back - A).abs().max() < 1e-10
    assert (V @ B_in_basis - B).abs().max() < 1e-11
    assert (V.mH @ V - torch.eye(n)).abs().max() < 1e-13


@pytest.mark.parametrize(("kind", "n"), SIZES)
def test_real_parts_are_exact_and_conjugates_are_exact_in_the_promised_order(kind, n):
    Lambda, P, B, V = lv.lti.nplr(kind, n)
    half = n // 2
    assert (Lambda.real == (-0.5 if kind == "legs" else 0)).all()
    assert (Lambda.imag[:half] >= 0).all() and (Lambda.imag[:half].diff() > 0).all()
    for part in (Lambda, P, B, V):
        assert torch.equal(part[..., :half].conj(), part[..., half : 2 * half])
        assert not part[..., 2 * half :].imag.any()


@pytest.mark.parametrize(("kind", "rank"), [("legs", 1), ("legt", 2), ("lagt", 1), ("fout", 1)])
def test_the_correction_has_the_rank_of_its_basis(kind, rank):
    P = lv.lti.nplr(kind, 16).P
    assert P.shape == (rank, 16) and torch.linalg.matrix_rank(P) == rank


def test_fourier_turns_by_whole_multiples_and_its_zeros_are_zeros():
    Lambda = lv.lti.nplr("fout", 10).Lambda
    assert torch.equal(Lambda[:5].imag, math.pi * torch.arange(5).double())
    assert Lambda[0] == 0 and Lambda[5] == 0


def test_the_line_belongs_to_the_normal_part_and_not_to_the_matrix():
    A, _ = lv.lti.hippo("legs", 6)
    Lambda, P, _, V = lv.lti.nplr("legs", 6)
    own = torch.linalg.eigvals(V @ (Lambda.diag() - P.mH @ P) @ V.mH)
    assert torch.allclose(own.real.sort().values, -torch.arange(6, 0, -1).double(), rtol=0, atol=1e-10)
    assert torch.equal(A.triu(1), torch.zeros_like(A))


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_the_rounded_float64_result(kind, device):
    exact = lv.lti.nplr(kind, 32)
    found = lv.lti.nplr(kind, 32, dtype=torch.float32, device=device)
    for one, other in zip(exact, found, strict=True):
        assert other.dtype == torch.complex64 and torch.equal(one.to(torch.complex64), other.cpu())


def test_a_dtype_that_eigenvectors_do_not_have_is_refused():
    with pytest.raises(ValueError, match="nplr: dtype, of the real parts, must be torch.float32 or float64"):
        lv.lti.nplr("legs", 2, dtype=torch.complex64)
