"""A recorded computation as a list of calls that read and write buffers made once: no allocations, no views."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from lavagna.generation.recording import Node, place, replaced, tensors_in
from lavagna.kernels.cpu import linear_few, pointwise
from lavagna.kernels.cpu.prepared import Call, in_place, joined
from lavagna.kernels.cpu.prepared import prepared as prepared_call

# torch's own operators that kernels serve are declared by these modules; others are, where a recording holds them.
SERVED = (linear_few, pointwise)
# Where torch keeps functions of networks that write into `out`.
MORE = torch._C._nn  # pyright: ignore[reportAttributeAccessIssue]
COPY = torch.ops.aten.clone.default


class Program:
    """The nodes of a recording, to be run again on the numbers that `inputs` then hold.

    - inputs: recorded input to the buffer that stands for it, by identity.
    - outputs: recorded results, each with the buffer that takes it, or None for one of the program's own. It may be the
      buffer of an input: then each run goes on from the one before.

    Views are taken once, since no buffer moves. A buffer is used again once nothing reads what it held.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: Sequence[tuple[Tensor, Tensor]],
        outputs: Sequence[tuple[Tensor, Tensor | None]],
    ) -> None:
        self._static = {id(recorded): buffer for recorded, buffer in inputs}
        self._wanted = {id(recorded): buffer for recorded, buffer in outputs if buffer is not None}
        self._given = {place(buffer) for _, buffer in inputs}
        # Every tensor that a call knows by its address alone.
        self._kept: list[Any] = [nodes, inputs, outputs]
        self._owned: dict[int, Tensor] = {}
        self._free: defaultdict[tuple, list[Tensor]] = defaultdict(list)
        self._last = _last_uses(nodes, [recorded for recorded, _ in outputs])
        by_node = defaultdict(list)
        for where, index in self._last.items():
            by_node[index].append(where)
        self.steps: list[Callable[[], object]] = []
        for index, node in enumerate(nodes):
            self._add(node, index)
            for gone in by_node[index]:
                self._release(gone)
        self._take(outputs)
        self.results = [self._static_of(recorded) for recorded, _ in outputs]
        self.calls = _runs(self.steps)

    def run(self) -> None:
        """Compute the results from what the inputs hold."""
        for call in self.calls:
            call()

    def _static_of(self, x: Tensor) -> Tensor:
        # What the recording took for a constant stands for itself.
        return self._static.get(id(x), x)

    def _add(self, node: Node, index: int) -> None:
        args, kwargs = replaced((node.args, node.kwargs), self._static_of)
        if node.views:
            made = tensors_in(node.function(*args, **kwargs))
            self._static |= {id(x): own for x, own in zip(node.results, made, strict=True)}
            return
        own = tuple(self._buffer(node, index, number) for number in range(len(node.results)))
        self._static |= {id(x): buffer for x, buffer in zip(node.results, own, strict=True)}
        self._kept.append((args, kwargs, own))
        self.steps.append(_call(node.function, args, kwargs, own))

    def _buffer(self, node: Node, index: int, number: int) -> Tensor:
        """Room for one of a node's results: what is wanted for it, where nothing else is still read from there."""
        like = node.results[number]
        wanted = self._wanted.get(id(like))
        if wanted is not None and (place(wanted) not in self._given or self._goes_on(node, index, number, wanted)):
            return wanted
        free = self._free[_layout(like)]
        buffer = free.pop() if free else torch.empty_strided(like.shape, like.stride(), dtype=like.dtype)
        self._owned[place(like)] = buffer
        return buffer

    def _goes_on(self, node: Node, index: int, number: int, wanted: Tensor) -> bool:
        """Whether this node is the last to read an input's buffer, and may write this result there."""
        argument = in_place(node.function).get(number)
        if argument is None:
            return False
        taken = node.args[argument]
        own = self._static_of(taken)
        same = own.data_ptr() == wanted.data_ptr() and (own.shape, own.stride()) == (wanted.shape, wanted.stride())
        return same and self._last.get(place(taken)) == index

    def _take(self, outputs: Sequence[tuple[Tensor, Tensor | None]]) -> None:
        """Bring results to the buffers that take them, those from other inputs' buffers by way of another tensor."""
        moves = [(self._static_of(recorded), buffer) for recorded, buffer in outputs if buffer is not None]
        moves = [(mine, buffer) for mine, buffer in moves if mine is not buffer]
        for number, (mine, buffer) in enumerate(moves):
            if place(mine) in self._given:
                aside = torch.empty_like(buffer)
                self._copy(mine, aside)
                moves[number] = aside, buffer
        for mine, buffer in moves:
            self._copy(mine, buffer)

    def _copy(self, x: Tensor, to: Tensor) -> None:
        self._kept.append((x, to))
        self.steps.append(prepared_call(COPY, (x,), {}, (to,)) or partial(to.copy_, x))

    def _release(self, where: int) -> None:
        buffer = self._owned.pop(where, None)
        if buffer is not None:
            self._free[_layout(buffer)].append(buffer)


def _last_uses(nodes: Sequence[Node], results: Sequence[Tensor]) -> dict[int, int]:
    """The last node that reads or makes recorded memory, by its place; that of results has none."""
    last = {
        place(x): index
        for index, node in enumerate(nodes)
        for x in (*tensors_in((node.args, node.kwargs)), *node.results)
    }
    for x in results:
        last.pop(place(x), None)
    return last


def _layout(x: Tensor) -> tuple:
    return x.dtype, tuple(x.shape), x.stride()


def _runs(steps: Sequence[Callable[[], object]]) -> list[Callable[[], object]]:
    """The same steps, neighboring calls of kernels as one call."""
    runs: list[Callable[[], object]] = []
    for kernels, group in groupby(steps, key=lambda step: isinstance(step, Call)):
        some = list(group)
        runs += [joined([step for step in some if isinstance(step, Call)])] if kernels else some
    return runs


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
