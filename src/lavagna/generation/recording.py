"""What a computation did, operator by operator: for doing it again on other numbers without the Python around it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# What operators may return.
TENSORS = torch.TensorType | torch.ListType


class UncapturableError(Exception):
    """The computation can't be done again from a recording; the message says why."""


class Node(NamedTuple):
    """One operator that depends on the inputs: what it took and gave, and whether that lies in what it took."""

    function: Any
    args: tuple
    kwargs: dict[str, Any]
    results: tuple[Tensor, ...]
    views: bool


class Recording(TorchDispatchMode):
    """Runs a computation and lists the operators that depend on `inputs`; what doesn't is a constant of the recording.

    Raises UncapturableError at a step that depends on a number that a tensor holds, draws random numbers, or writes
    into a tensor. It stands below autograd and autocast, whose casts are operators like others.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        # By identity: the nodes and the constants keep every tensor alive, so no two have one.
        self.dependent = {id(x) for x in inputs}
        # Constants that were computed, each with what of; and what numbers were read of.
        self._constants: dict[int, tuple[Tensor, list[Tensor]]] = {}
        self._read: list[Tensor] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Asked by torch, which at True imports its whole compiler, for a second or two, only to keep it away from here.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        kwargs = kwargs or {}
        given = tensors_in((args, kwargs))
        depends = any(id(x) in self.dependent for x in given)
        if depends and func is torch.ops.aten._local_scalar_dense.default:
            raise UncapturableError("A number that a tensor holds is read.")
        if func._schema.is_mutable or torch.Tag.nondeterministic_seeded in func.tags:
            raise UncapturableError(f"{func} writes into a tensor or draws random numbers.")
        made = func(*args, **kwargs)
        if depends:
            results = tuple(tensors_in(made))
            places = {place(x) for x in given}
            views = all(place(x) in places for x in results if x.numel())
            if not all(isinstance(value.type, TENSORS) for value in func._schema.returns):
                raise UncapturableError(f"{func} returns more than tensors.")
            self.nodes.append(Node(func, args, kwargs, results, views))
            self.dependent |= {id(x) for x in results}
        else:
            self._remember(given, made)
        return made

    def _remember(self, given: list[Tensor], made: Any) -> None:
        """What a constant was computed of; a view of what was given is no more constant than that is."""
        sources = [source for x in given for source in self._constants.get(id(x), (x, [x]))[1]]
        places = {place(x) for x in given if id(x) not in self._constants}
        for x in tensors_in(made):
            if not x.numel() or place(x) not in places:
                self._constants[id(x)] = x, sources
        if not tensors_in(made):
            self._read += sources

    def sources(self, nodes: Sequence[Node]) -> list[Tensor]:
        """The tensors that constants of these nodes were computed of: written to, they would make the nodes wrong."""
        held = [x for node in nodes for x in tensors_in((node.args, node.kwargs))]
        found = [source for x in held for source in self._constants.get(id(x), (x, []))[1]]
        return list({id(x): x for x in [*found, *self._read]}.values())

    def needed(self, wanted: Sequence[Tensor]) -> list[Node]:
        """The operators that the wanted tensors hang on, in order."""
        kept, needed = [], {id(x) for x in wanted}
        for node in reversed(self.nodes):
            if any(id(x) in needed for x in node.results):
                kept.append(node)
                needed |= {id(x) for x in tensors_in((node.args, node.kwargs))}
        return kept[::-1]


def tensors_in(tree: Any) -> list[Tensor]:
    """Every tensor in nested lists, tuples and dictionaries: what operators are given."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    return [x for part in tree for x in tensors_in(part)] if isinstance(tree, list | tuple) else []


def replaced(tree: Any, by: Callable[[Tensor], Tensor]) -> Any:
    """The same nesting with other tensors."""
    if isinstance(tree, Tensor):
        return by(tree)
    if isinstance(tree, dict):
        return {name: replaced(part, by) for name, part in tree.items()}
    return type(tree)(replaced(part, by) for part in tree) if isinstance(tree, list | tuple) else tree


def place(x: Tensor) -> int:
    """Where the memory begins that a tensor lies in."""
    return x.untyped_storage().data_ptr()
