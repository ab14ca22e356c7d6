"""Powers of a dense matrix on a vector."""

import pytest
import torch

from lavagna.lti.krylov import doubled, krylov, raised, squares


def system(device, *rows, n=5, dtype=torch.float64):
    return torch.randn(*rows, n, n, device=device, dtype=dtype) / n**0.5, torch.randn(
        *rows, n, device=device, dtype=dtype
    )


def one_by_one(A, B, length):
    found = [B]
    for _ in range(length - 1):
        found.append((A @ found[-1].unsqueeze(-1)).squeeze(-1))
    return torch.stack(found, -2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 33])
def test_each_row_is_the_matrix_times_the_one_before(device, length, dtype):
    A, B = system(device, 2, 3, dtype=dtype)
    assert torch.allclose(krylov(A, B, length), one_by_one(A, B, length), rtol=1e-12, atol=1e-13)


def test_one_matrix_serves_many_vectors(device):
    A, _ = system(device)
    B = torch.randn(4, 5, device=device, dtype=torch.float64)
    assert torch.allclose(krylov(A, B, 9), one_by_one(A, B, 9), rtol=1e-12, atol=1e-13)


def test_no_rows_where_none_are_asked_for(device):
    assert krylov(*system(device), 0).shape == (0, 5)


def test_a_negative_length_is_refused(device):
    with pytest.raises(ValueError, match="krylov: length must be an int >= 0, but came as -1"):
        krylov(*system(device), -1)


def test_shapes_that_do_not_fit_are_named(device):
    A, B = system(device)
    for given in ((A[:3], B), (A, B[:3]), (A[0], B)):
        with pytest.raises(ValueError, match=r"krylov: A must be \(.., n, n\) and B \(.., n\), but came as"):
            krylov(*given, 3)


def test_squares_known_for_a_longer_run_serve_a_shorter(device):
    A, B = system(device)
    assert torch.equal(doubled(squares(A, 40), B, 11), krylov(A, B, 11))


def test_each_vector_is_raised_to_its_own_count(device):
    A, _ = system(device, 3)
    x = torch.randn(3, 4, 5, device=device, dtype=torch.float64)
    counts = [0, 1, 6, 7]
    found = raised(squares(A, 8), x, torch.tensor(counts, device=device))
    for i, count in enumerate(counts):
        right = x[:, i : i + 1] @ torch.linalg.matrix_power(A, count).mT
        assert torch.allclose(found[:, i : i + 1], right, rtol=1e-12, atol=1e-13)
        assert torch.allclose(raised(squares(A, 8), x, count)[:, i : i + 1], right, rtol=1e-12, atol=1e-13)


def test_gradients_are_those_of_the_powers(device):
    A, B = (x.requires_grad_() for x in system(device, n=3))
    assert torch.autograd.gradcheck(lambda A, B: krylov(A, B, 6), (A, B))
