"""What a layer or a model remembers between calls: named tensors, batch first, never changed in place."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, cast

import torch
from jaxtyping import Bool, Int
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from lavagna.atomic_file import atomic_file

FORMAT = "lavagna-state-1"


class _Immutable:
    """What the states of layers and of models share: everything that can be said tensor by tensor."""

    __slots__ = ()

    def tensors(self) -> dict[str, Tensor]:
        """Name to tensor; the first axis of each is the batch."""
        raise NotImplementedError

    def replace(self, **tensors: Tensor) -> Self:
        """A state with some tensors exchanged. Raises ValueError on a name that this state lacks."""
        raise NotImplementedError

    def _map(self, function) -> Self:
        return self.replace(**{name: function(tensor) for name, tensor in self.tensors().items()})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a state is immutable: use state.replace({name}=...), which returns a new one.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a state is immutable: {name} can't be deleted.")

    def clone(self) -> Self:
        """A copy that shares no storage; gradients flow through it."""
        return self._map(torch.clone)

    def detach(self) -> Self:
        """The same numbers, cut off from the graph: for truncated back-propagation through time."""
        return self._map(torch.detach)

    def to(self, *args: object, **kwargs: object) -> Self:
        """Moved or cast as by `Tensor.to`; a float dtype leaves integer tensors alone."""
        # The parser that nn.Module.to uses.
        device, dtype, blocking, _ = torch._C._nn._parse_to(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]

        def move(tensor: Tensor) -> Tensor:
            wanted = dtype if dtype is not None and tensor.is_floating_point() else None
            return tensor.to(device, wanted, non_blocking=blocking)

        return self._map(move)

    def select(self, rows: Sequence[int] | Int[Tensor, " m"] | Bool[Tensor, " b"]) -> Self:
        """The state of some rows, by number and repeated at will (beam search), or by a mask; shares no storage."""
        any_tensor = next(iter(self.tensors().values()))
        index = torch.as_tensor(rows, device=any_tensor.device)
        # Taken as numbers, a mask of rows would pick the rows 0 and 1 in silence.
        index = index.nonzero().flatten() if index.dtype == torch.bool else index.long()
        return self._map(lambda tensor: tensor.index_select(0, index))

    @property
    def nbytes(self) -> int:
        """Bytes that the tensors hold."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def _kinds(self) -> list[str]:
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write to one safetensors file, whole or not at all; `lavagna.load_state` reads it."""
        metadata = {"format": FORMAT, "kinds": json.dumps(self._kinds()), "model": str(isinstance(self, ModelState))}
        # The file lists its tensors in an order of its own.
        metadata["names"] = json.dumps(list(self.tensors()))
        # Clones because safetensors refuses tensors that share storage, as an expanded initial state may.
        tensors = {name: tensor.detach().clone().contiguous() for name, tensor in self.tensors().items()}
        with atomic_file(Path(path)) as file:
            file.write(safetensors_bytes(tensors, metadata))


class State(_Immutable):
    """The state of one layer: its kind (the layer's name) and its tensors, each also an attribute.

    `tokens_seen`, int64 (b,), counts the real (unmasked) tokens of each row and is always there.
    """

    __slots__ = ("_tensors", "kind")

    kind: str
    _tensors: dict[str, Tensor]

    def __init__(self, kind: str, tensors: Mapping[str, Tensor]) -> None:
        assert "tokens_seen" in tensors
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "_tensors", dict(tensors))

    def tensors(self) -> dict[str, Tensor]:
        """Name to tensor; the first axis of each is the batch."""
        return dict(self._tensors)

    def __getattr__(self, name: str) -> Tensor:
        # A state that is only half made, as while being copied, would ask itself for these for ever.
        if name in ("_tensors", "kind"):
            raise AttributeError(name)
        if name not in self._tensors:
            raise AttributeError(f"the state of {self.kind} has no {name!r}; it has {', '.join(self._tensors)}.")
        return self._tensors[name]

    def replace(self, **tensors: Tensor) -> "State":
        """A state with some tensors exchanged. Raises ValueError on a name that this state lacks."""
        mine = self.tensors()
        _known(tensors, mine)
        return State(self.kind, mine | tensors)

    def __reduce__(self) -> tuple[type["State"], tuple[str, dict[str, Tensor]]]:
        return State, (self.kind, self.tensors())

    def _kinds(self) -> list[str]:
        return [self.kind]

    def __repr__(self) -> str:
        return f"State({self.kind!r}, {_shapes(self.tensors())})"


class ModelState(_Immutable):
    """The state of a model: one layer state a block, `state[i]`; tensor names are `"i.name"`."""

    __slots__ = ("blocks",)

    blocks: tuple[State, ...]

    def __init__(self, blocks: Sequence[State]) -> None:
        object.__setattr__(self, "blocks", tuple(blocks))

    def __getitem__(self, block: int) -> State:
        return self.blocks[block]

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[State]:
        return iter(self.blocks)

    @property
    def tokens_seen(self) -> Int[Tensor, " b"]:
        """How many real tokens each row has seen, int64 (b,)."""
        return self.blocks[0].tokens_seen

    def tensors(self) -> dict[str, Tensor]:
        """`"block.name"` to tensor; the first axis of each is the batch."""
        return {f"{i}.{name}": x for i, block in enumerate(self.blocks) for name, x in block.tensors().items()}

    def replace(self, **tensors: Tensor) -> "ModelState":
        """A state with some tensors exchanged. Raises ValueError on a name that this state lacks."""
        mine = self.tensors()
        _known(tensors, mine)
        return _model_state(mine | tensors, self._kinds())

    def __reduce__(self) -> tuple[type["ModelState"], tuple[tuple[State, ...]]]:
        return ModelState, (self.blocks,)

    def _kinds(self) -> list[str]:
        return [block.kind for block in self.blocks]

    def __repr__(self) -> str:
        return f"ModelState({', '.join(map(repr, self.blocks))})"


def _known(tensors: Mapping[str, Tensor], mine: Mapping[str, Tensor]) -> None:
    unknown = [name for name in tensors if name not in mine]
    if unknown:
        raise ValueError(f"replace: this state has no {', '.join(unknown)}; it has {', '.join(mine)}.")


def _shapes(tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())


def _model_state(tensors: Mapping[str, Tensor], kinds: Sequence[str]) -> ModelState:
    blocks: list[dict[str, Tensor]] = [{} for _ in kinds]
    for name, tensor in tensors.items():
        block, rest = name.split(".", 1)
        blocks[int(block)][rest] = tensor
    return ModelState([State(kind, block) for kind, block in zip(kinds, blocks, strict=True)])


def load_state(path: str | os.PathLike[str], *, device: torch.device | str | None = None) -> State | ModelState:
    """Read a state that `.save` wrote, bit for bit. Raises ValueError where the file is not one."""
    try:
        with safe_open(os.fspath(path), framework="pt", device=str(device or "cpu")) as file:
            metadata = file.metadata() or {}
            # Clones because a tensor may start anywhere in a file, and where it starts may change how sums are rounded.
            tensors = {name: cast(Tensor, file.get_tensor(name)).clone() for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(
            f"load_state: {path} is not a whole safetensors file ({error}). Save the state again."
        ) from None
    if metadata.get("format") != FORMAT:
        came = metadata.get("format", "no lavagna state")
        raise ValueError(f"load_state: {path} holds {came}, but {FORMAT} was wanted. Write it with state.save(path).")
    kinds = json.loads(metadata["kinds"])
    tensors = {name: tensors[name] for name in json.loads(metadata.get("names", "null")) or tensors}
    if metadata["model"] == "True":
        return _model_state(tensors, kinds)
    return State(kinds[0], tensors)
