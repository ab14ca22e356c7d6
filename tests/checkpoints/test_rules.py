"""Every rule moves numbers and changes none, there and back."""

import pytest
import torch

from lavagna.checkpoints.rules import (
    parted,
    reorder,
    reshape,
    reshaped,
    rows,
    same,
    squeeze,
    stacked,
    transpose,
    transposed,
)

A, B = torch.arange(12.0).reshape(6, 2), -torch.arange(4.0).reshape(2, 2)
RULES = {
    "same": (same("x", "a"), [A], [A]),
    "stacked": (stacked("x", ["a", "b"], [6, 2]), [A, B], [torch.cat([A, B])]),
    "stacked on the last axis": (
        stacked("x", ["a", "b"], [2, 1], axis=-1), [A, A[:, :1]], [torch.cat([A, A[:, :1]], 1)],
    ),
    "parted": (parted(["x", "y"], "a", [4, 2]), [A], [A[:4], A[4:]]),
    "transposed": (transposed("x", "a"), [A], [A.T]),
    "reshaped": (reshaped("x", "a", (3, 4), (6, 2)), [A], [A.reshape(3, 4)]),
    "rows": (rows("x", "a", [5, 0, 1, 2, 3, 4]), [A], [A[[5, 0, 1, 2, 3, 4]]]),
    "squeezed": (same("x", "a", squeeze(1)), [A[:, None]], [A]),
    "columns": (same("x", "a", reorder([1, 0], axis=1)), [A], [A[:, [1, 0]]]),
    "several": (
        stacked("x", ["a", "b"], [6, 2]).then(reorder(torch.arange(8).flip(0)), transpose(), reshape((4, 4), (2, 8))),
        [A, B],
        [torch.cat([A, B]).flip(0).T.reshape(4, 4)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rule_reads_and_writes_what_it_says(name, dtype):
    rule, theirs, ours = RULES[name]
    theirs, ours = ([x.to(dtype) for x in tensors] for tensors in (theirs, ours))
    for found, wanted in ((rule.read(theirs), ours), (rule.write(ours), theirs)):
        assert len(found) == len(wanted) and all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
        assert all(x.dtype == dtype for x in found)


@pytest.mark.parametrize("name", RULES)
def test_shapes_are_known_without_numbers(name):
    rule, theirs, ours = RULES[name]
    for change, tensors, wanted in ((rule.read, theirs, ours), (rule.write, ours, theirs)):
        assert [x.shape for x in change([x.to("meta") for x in tensors])] == [x.shape for x in wanted]
