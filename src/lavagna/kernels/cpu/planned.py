"""Operators that one call of a kernel serves: how a call is made, and made again, of whatever tensors.

Of a call all but where its tensors lie follows from its signature: dtypes, shapes, strides, options, and how many
threads there are. So it is worked out once a signature, on tensors without numbers, and a later call is the same block
of numbers with other addresses.
"""

from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lavagna.derivatives import only_values
from lavagna.facts import Facts, facts
from lavagna.kernels.cpu.operands import Block, function, in_large_pages, on_cpu, packed, register
from lavagna.kernels.cpu.prepared import Call, prepares

# Signatures of an operator whose calls are kept.
KEPT = 256
CPU, META = torch.device("cpu"), torch.device("meta")


class New(NamedTuple):
    """A tensor to be made for a result, dense; of zeros where a kernel doesn't write all of it, as at masked steps."""

    shape: Sequence[int | torch.SymInt]
    dtype: torch.dtype
    zeros: bool = False

    def made(self, device: torch.device = CPU) -> Tensor:
        """The tensor, whatever the default device is."""
        return (torch.zeros if self.zeros else torch.empty)(tuple(self.shape), dtype=self.dtype, device=device)

    def maker(self) -> Callable[[], Tensor]:
        """What makes it again and again: torch reads strides sooner than it computes them."""
        if self.zeros:
            return self.made
        return partial(torch.empty_strided, self.shape, self.made(META).stride(), dtype=self.dtype, device=CPU)


class _Plan(NamedTuple):
    """The calls of one signature: a block without addresses, and where in it that of each tensor goes."""

    function: Callable[[int], None] | None
    block: array
    # Of each tensor given and made; that of what the kernel reads nothing of lies behind the end.
    places: tuple[int, ...]
    makers: tuple[Callable[[], Tensor] | None, ...]
    complex: bool

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
        """Make the call, and return what was made for it."""
        made = tuple([None if make is None else make() for make in self.makers])
        in_large_pages(made)
        # Another thread may be in the same plan.
        block = self.block[:]
        for place, x in zip(self.places, (*tensors, *made), strict=True):
            if x is not None:
                block[place] = x.data_ptr()
        if self.function is not None:
            self.function(block.buffer_info()[0])
        return made


class Operator:
    """An operator that is defined as `name`, tensors first, and a call of the kernel of that name.

    - settle(*given): the arguments as the kernel reads them, tensors that it can read being the very same.
    - room(*given): what is to be made for the results, None where nothing is.
    - block(made, *settled): the call as the kernel reads it, or None where nothing is to be computed.
    - results(*made): what the operator returns of what was made; None becomes an empty tensor.
    - in_place: which results may lie where an argument does, by their places: a state read before it is written.

    Called, it is torch's operator, or what computes it where torch's dispatcher, which costs more than a step, has no
    part. Without a mask, borders or anything kept, its calls can be prepared.
    """

    def __init__(
        self,
        name: str,
        *,
        settle: Callable[..., tuple],
        room: Callable[..., tuple[New | None, ...]],
        block: Callable[..., Block | None],
        results: Callable[..., Any] = lambda *made: made,
        in_place: dict[int, int] | None = None,
    ) -> None:
        self.name, self._settle, self._room, self._block, self._results = name, settle, room, block, results
        self.operator = register(name, self._compute, self._shapes)
        arguments = self.operator._schema.arguments
        self._count = sum("Tensor" in str(one.type) for one in arguments)
        self._absent = [i for i, one in enumerate(arguments) if one.name in ("mask", "offsets", "keep")]
        self._plan = lru_cache(KEPT)(self._planned)
        prepares(self.operator, in_place=in_place)(self._prepared)

    def __call__(self, *given: Any) -> Any:
        return self._compute(*given) if only_values(given) else self.operator(*given)

    def _compute(self, *given: Any) -> Any:
        tensors, plan = self._found(given)
        if plan is None:
            tensors, plan = self._found(self._settle(*given))
        assert plan is not None
        return self._results(*plan.run(tensors))

    def _found(self, given: tuple) -> tuple[list[Tensor], _Plan | None]:
        """The tensors among the arguments, and the plan of their signature: all of a block but the addresses."""
        tensors = [x for x in given[: self._count] if x is not None]
        gapless = all(map(Tensor.is_contiguous, tensors))
        strides = None if gapless else tuple(map(Tensor.stride, tensors))
        options = tuple([tuple(x) if isinstance(x, list) else x for x in given[self._count :]])
        plan = self._plan(torch.get_num_threads(), facts(given[: self._count]), strides, options)
        # Signs that are pending, and zeros without memory, are no part of it.
        if plan is not None and (
            any(map(Tensor.is_neg, tensors))
            or any(map(Tensor._is_zerotensor, tensors))
            or (plan.complex and any(map(Tensor.is_conj, tensors)))
        ):
            return tensors, None
        return tensors, plan

    def _planned(self, threads: int, facts: Facts, strides: tuple | None, options: tuple) -> _Plan | None:
        """The plan of a signature, or None where the kernel reads other tensors. Blocks ask torch for `threads`."""
        news = []
        for dtype, shape, device in filter(None, facts):
            on_cpu(self.name, shape, device)
            news.append(New(shape, dtype))
        tensors = [new.made(META) for new in news]
        if strides is not None:
            tensors = [
                torch.empty_strided(x.shape, by, dtype=x.dtype, device=META)
                for x, by in zip(tensors, strides, strict=True)
            ]
        each = iter(tensors)
        given = (*(None if one is None else next(each) for one in facts), *options)
        # Which says at once what the operator can't take.
        room = self._room(*given)
        settled = self._settle(*given)
        if not _same(given, settled):
            return None
        made = tuple(None if new is None else new.made(META) for new in room)
        block = self._block(made, *settled)
        makers = tuple(None if new is None else new.maker() for new in room)
        turns = any(x.is_complex() for x in tensors)
        numbers = array("q", [0 if isinstance(x, Tensor) else x for x in (*(block or ()), 0)])
        place = {id(x): i for i, x in enumerate(block or ()) if isinstance(x, Tensor)}
        assert len(place) == sum(isinstance(x, Tensor) for x in block or ()), "a tensor lies in two places of a block"
        places = tuple(place.get(id(x), len(numbers) - 1) for x in (*tensors, *made))
        return _Plan(None if block is None else function(self.name), numbers, places, makers, turns)

    def _shapes(self, *given: Any) -> Any:
        return self._results(*(None if new is None else new.made() for new in self._room(*given)))

    def _prepared(self, made: tuple[Tensor, ...], *given: Any) -> Call | None:
        if any(given[i] is not None and given[i] is not False for i in self._absent):
            return None
        settled = self._settle(*given)
        block = self._block(made, *settled) if _same(given, settled) else None
        return None if block is None else Call(f"lavagna_{self.name}", packed(block))


def borders(offsets: list[int] | None) -> Tensor | None:
    """Where packed sequences begin and end, as kernels read it."""
    return None if offsets is None else torch.tensor(offsets, dtype=torch.int64, device=CPU)


def run(operator: Callable[..., Any], tensors: tuple, real: Tensor | None, offsets: list[int] | None, *options: bool):
    """An operator over steps, of a mask and borders; what a backward pass needs is kept where there may be one."""
    keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    return operator(*tensors, real, borders(offsets), *options, keep)


def _same(given: tuple, settled: tuple) -> bool:
    """Whether the kernel reads the arguments themselves; those that were left out are None."""
    return all(x is own for x, own in zip(given, settled, strict=False))
