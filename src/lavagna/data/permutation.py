"""A pseudo-random order of many things, without a list of them."""

import numpy as np

_ROUNDS = 8


def permuted(index: np.ndarray, size: int, *, key: tuple[int, ...]) -> np.ndarray:
    """Where each `index` below `size` goes in the permutation of `range(size)` that `key` picks, as int64.

    A Feistel network permutes the numbers of an even count of bits; whoever lands at `size` or beyond is sent on until
    he is back inside, which keeps it a permutation. Memory and time are those of `index`, whatever the size.

    >>> sorted(permuted(np.arange(10), 10, key=(1, 2)).tolist()) == list(range(10))
    True

    Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002.
    """
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)
    value = _feistel(index.astype(np.uint64), half, keys)
    while (outside := value >= size).any():
        value[outside] = _feistel(value[outside], half, keys)
    return value.astype(np.int64)


def _feistel(value: np.ndarray, half: int, keys: np.ndarray) -> np.ndarray:
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = value >> bits, value & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return left << bits | right


def _mixed(value: np.ndarray) -> np.ndarray:
    # The finalizer of splitmix64: every bit of the input moves half of the output's.
    value = (value ^ value >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ value >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return value ^ value >> np.uint64(31)
