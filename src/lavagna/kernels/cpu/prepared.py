"""Calls of kernels of which all but the numbers is settled: what a captured step is made of.

An operator says here how a call of it is prepared, and whoever runs the same calls again and again asks by operator:

    @prepares(torch.ops.lavagna.scan.default)
    def prepared(made, x, state, keep=False):
        return None if keep or not x.is_contiguous() else Call("lavagna_scan", _block(x, state, *made))
"""

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from lavagna.kernels.cpu.library import library


class Call:
    """A function of the library on one block of packed integers, which stays where it is as long as the call lives.

    Whoever holds the call keeps alive the tensors whose addresses are in the block, but for those in `kept`.
    """

    def __init__(self, name: str, block: bytes, kept: Sequence[object] = ()) -> None:
        functions = library().functions
        assert functions is not None
        self.name, self.block, self._kept = name, block, kept
        self._function = getattr(functions, name)

    def __call__(self) -> None:
        """Make the call."""
        self._function(self.block)

    @property
    def addresses(self) -> tuple[int, int]:
        """Where the function and its block lie."""
        function = ctypes.cast(self._function, ctypes.c_void_p).value
        block = ctypes.cast(ctypes.c_char_p(self.block), ctypes.c_void_p).value
        assert function is not None and block is not None
        return function, block


def joined(calls: Sequence[Call]) -> Call:
    """Calls one after another as one: what they cost beside their work is a few nanoseconds each."""
    addresses = [number for call in calls for number in call.addresses]
    return Call("lavagna_run", struct.pack(f"{1 + len(addresses)}q", len(calls), *addresses), tuple(calls))


# Is given the tensors that the operator returns, then its arguments; None where a call needs more than one kernel does.
Prepare = Callable[..., Call | None]


class _Known(NamedTuple):
    prepare: Prepare
    in_place: dict[int, int]


_KNOWN: dict[Any, _Known] = {}


def prepares(*operators: Any, in_place: dict[int, int] | None = None) -> Callable[[Prepare], Prepare]:
    """Declare how a call of these operators is prepared: `prepare(made, *arguments)`, a Call or None.

    `made` is the tuple of tensors that take the results, which the call writes whole. Arguments come as the operator
    got them, so those at the end that are the default may be missing. `in_place` says which results may lie where an
    argument does, by their places: a state that is read before it is written.
    """

    def declared(prepare: Prepare) -> Prepare:
        _KNOWN.update(dict.fromkeys(operators, _Known(prepare, in_place or {})))
        return prepare

    return declared


def prepared(operator: Any, arguments: tuple, options: dict[str, Any], made: tuple[Tensor, ...]) -> Call | None:
    """A call of the operator that writes into `made`; None where it has none, or the kernels are missing."""
    known = _KNOWN.get(operator)
    return None if known is None or library().functions is None else known.prepare(made, *arguments, **options)


def in_place(operator: Any) -> dict[int, int]:
    """Which results of the operator's prepared calls may lie where an argument does."""
    known = _KNOWN.get(operator)
    return {} if known is None else known.in_place
