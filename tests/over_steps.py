"""What every kernel over steps is held to in the same way, of whatever it takes and shows."""

from itertools import pairwise

import torch

from transitions import difference


def same_bits(found, right):
    """Whether two lists of tensors hold the same numbers; one that is not there is not there in either."""
    return all(x is y is None or torch.equal(x, y) for x, y in zip(found, right, strict=True))


def close(found, right, most=1e-13):
    return max(map(difference, found, right)) < most


def by_threads(find, counts=(1, 2, 3)):
    """What is found with each number of threads."""
    before, found = torch.get_num_threads(), []
    try:
        for count in counts:
            torch.set_num_threads(count)
            found.append(find())
    finally:
        torch.set_num_threads(before)
    return found


def threads_change_no_bit(find):
    first, *others = by_threads(find)
    return all(same_bits(found, first) for found in others)


def cut_is_whole(run, state, length, cut, same=same_bits):
    """Whether `run(start, end, *state)`, what is shown and the state after it, is the same in two pieces."""
    shown, *last = run(0, length, *state)
    first, *between = run(0, cut, *state)
    second, *after = run(cut, length, *between)
    return same([torch.cat([first, second], 1), *after], [shown, *last])


def packed_is_apart(whole, run, state, borders):
    """Whether sequences in one row, and states after them, are those of `run(start, end, *state)` of each alone."""
    shown, *lasts = whole
    rows = range(len(borders) - 1)
    alone = [run(*pair, *(x[row : row + 1] for x in state)) for row, pair in zip(rows, pairwise(borders), strict=True)]
    own, *after = zip(*alone, strict=True)
    return same_bits([torch.cat(own, 1), *map(torch.cat, after)], [shown, *lasts])


def hidden(x, mask):
    """`x` with NaN at masked steps."""
    return torch.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), x, torch.nan)


def at_most_twice_as_far(ours, torchs, right, least=1e-6):
    """Whether ours are off by twice what torch's are at most."""
    return all(
        difference(own, wanted) <= max(2 * difference(other, wanted), least)
        for own, other, wanted in zip(ours, torchs, right, strict=True)
    )


def twice(outputs, leaves):
    """Gradients of the squares of the gradients of what outputs' squares add up to."""
    first = torch.autograd.grad(sum(x.square().sum() for x in outputs), leaves, create_graph=True)
    return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)
