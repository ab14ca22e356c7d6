"""Calls of kernels of which all but the numbers is settled: what a captured step is made of.

An operator says here how a call of it is prepared, and whoever runs the same calls again and again asks by operator:

    @prepares(torch.ops.lavagna.scan.default)
    def prepared(made, x, state, keep=False):
        return None if keep or not x.is_contiguous() else Call("lavagna_scan", _block(x, state, *made))
"""

import ctypes
from collections.abc import Callable
from typing import Any

from torch import Tensor

from lavagna.kernels.cpu.operands import LIBRARY


class Call:
    """A function of the library on one block of packed integers, which stays where it is as long as the call lives.

    Whoever holds the call keeps alive the tensors whose addresses are in the block.
    """

    def __init__(self, name: str, block: bytes) -> None:
        functions = LIBRARY.functions
        assert functions is not None
        self.name, self.block = name, block
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


# Is given the tensors that the operator returns, then its arguments; None where a call needs more than one kernel does.
Prepare = Callable[..., Call | None]
_PREPARE: dict[Any, Prepare] = {}


def prepares(*operators: Any) -> Callable[[Prepare], Prepare]:
    """Declare how a call of these operators is prepared: `prepare(made, *arguments)`, a Call or None.

    `made` is the tuple of tensors that take the results, which the call writes whole. Arguments come as the operator
    got them, so those at the end that are the default may be missing.
    """

    def declared(prepare: Prepare) -> Prepare:
        _PREPARE.update(dict.fromkeys(operators, prepare))
        return prepare

    return declared


def prepared(operator: Any, arguments: tuple, options: dict[str, Any], made: tuple[Tensor, ...]) -> Call | None:
    """A call of the operator that writes into `made`; None where it has none, or the kernels are missing."""
    prepare = _PREPARE.get(operator)
    return None if prepare is None or LIBRARY.functions is None else prepare(made, *arguments, **options)
