"""A recorded computation as a list of calls that read and write buffers made once: no allocations, no views."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lavagna.generation.recording import Node, place, replaced, tensors_in
from lavagna.kernels.cpu import linear_few
from lavagna.kernels.cpu.prepared import prepared as prepared_call

# torch's own operators that kernels serve are declared by these modules; others are, where a recording holds them.
SERVED = (linear_few,)
# Where torch keeps functions of networks that write into `out`.
MORE = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]


class Program:
    """The nodes of a recording, to be run again on the numbers that `inputs` then hold.

    - inputs: recorded input to the buffer that stands for it, by identity.
    - outputs: recorded results, each with the buffer that takes it, or None for one of the program's own.

    Views are taken once, since no buffer moves. A buffer is used again once nothing reads what it held.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: Sequence[tuple[Tensor, Tensor]],
        outputs: Sequence[tuple[Tensor, Tensor | None]],
    ) -> None:
        self.calls: list[Callable[[], object]] = []
        self._static = {id(recorded): buffer for recorded, buffer in inputs}
        self._wanted = {id(recorded): buffer for recorded, buffer in outputs if buffer is not None}
        # Every tensor that a call knows by its address alone.
        self._kept: list[Any] = [nodes, inputs, outputs]
        self._owned: dict[int, Tensor] = {}
        self._free: defaultdict[tuple, list[Tensor]] = defaultdict(list)
        last = self._last_uses(nodes, [recorded for recorded, _ in outputs])
        for index, node in enumerate(nodes):
            self._add(node)
            for gone in last.get(index, ()):
                self._release(gone)
        for recorded, buffer in outputs:
            mine = self._static_of(recorded)
            if buffer is not None and mine is not buffer:
                self.calls.append(partial(buffer.copy_, mine))
                self._kept.append(mine)
        self.results = [self._static_of(recorded) for recorded, _ in outputs]

    def run(self) -> None:
        """Compute the results from what the inputs hold."""
        for call in self.calls:
            call()

    def _static_of(self, x: Tensor) -> Tensor:
        # What the recording took for a constant stands for itself.
        return self._static.get(id(x), x)

    def _last_uses(self, nodes: Sequence[Node], results: Sequence[Tensor]) -> dict[int, list[int]]:
        """Places of recorded memory by the last node that reads or makes them; those of results have none."""
        last = {
            place(x): index
            for index, node in enumerate(nodes)
            for x in (*tensors_in((node.args, node.kwargs)), *node.results)
        }
        for x in results:
            last.pop(place(x), None)
        by_node = defaultdict(list)
        for where, index in last.items():
            by_node[index].append(where)
        return by_node

    def _add(self, node: Node) -> None:
        args, kwargs = replaced((node.args, node.kwargs), self._static_of)
        if node.views:
            made = tensors_in(node.function(*args, **kwargs))
            self._static |= {id(x): own for x, own in zip(node.results, made, strict=True)}
            return
        own = tuple(self._buffer(x) for x in node.results)
        self._static |= {id(x): buffer for x, buffer in zip(node.results, own, strict=True)}
        self._kept.append((args, kwargs, own))
        self.calls.append(_call(node.function, args, kwargs, own))

    def _buffer(self, like: Tensor) -> Tensor:
        wanted = self._wanted.get(id(like))
        if wanted is not None:
            return wanted
        free = self._free[_layout(like)]
        buffer = free.pop() if free else torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        self._owned[place(like)] = buffer
        return buffer

    def _release(self, where: int) -> None:
        buffer = self._owned.pop(where, None)
        if buffer is not None:
            self._free[_layout(buffer)].append(buffer)


def _layout(x: Tensor) -> tuple:
    return x.dtype, tuple(x.shape), x.stride()


def _call(function: Any, args: tuple, kwargs: dict[str, Any], own: tuple[Tensor, ...]) -> Callable[[], object]:
    """One operator with its results in `own`: a kernel with its addresses, torch's variant with `out`, or a copy."""
    kernel = prepared_call(function, args, kwargs, own)
    if kernel is not None:
        return kernel
    if len(own) == 1:
        right = function(*args, **kwargs)
        name = function._schema.name.removeprefix("aten::")
        for writes in (getattr(torch, name, None), getattr(MORE, name, None)):
            if writes is not None and _writes(writes, args, kwargs, own[0], right):
                return partial(writes, *args, **kwargs, out=own[0])

    def copied() -> None:
        for buffer, x in zip(own, tensors_in(function(*args, **kwargs)), strict=True):
            buffer.copy_(x)

    return copied


def _writes(function: Any, args: tuple, kwargs: dict[str, Any], out: Tensor, right: Tensor) -> bool:
    """Whether a function of torch's own writes what the operator returns, which it is tried on."""
    before = out.data_ptr()
    try:
        function(*args, **kwargs, out=out)
    except (TypeError, RuntimeError):
        return False
    return out.data_ptr() == before and out.shape == right.shape and torch.equal(out.nan_to_num(), right.nan_to_num())
