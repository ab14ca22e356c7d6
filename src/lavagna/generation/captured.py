"""A model's step on a CPU as a list of kernel calls: what it computes without what Python and the allocator cost.

For a row or a few a small model spends more time between its operators than in them. One step is run and recorded; from
then on its operators alone are run, on buffers that are made once, and linear maps read their weights at the speed of
memory.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lavagna.generation.program import Program
from lavagna.generation.recording import Node, Recording, UncapturableError
from lavagna.generation.ring import Ring, rings
from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.linear_few import FEW
from lavagna.models import LanguageModel
from lavagna.state import ModelState

# Steps from which on a capture, which takes as long as about ten of them, pays.
WORTH = 24
# Tokens that caches have room for, if as many are to come; beyond that as many more as were seen.
ROOM = 1024


class Captured:
    """The step of a model for a few rows, from a state of one size to the next.

    Calls return logits (b, 1, rows) in a buffer of its own, good until the next call. Weights are read where they lie,
    and what is computed of weights alone, such as decays, is computed once: `current` says whether it still holds.
    Caches of attention get room for up to `steps` tokens: `left` calls more fit.

    Raises UncapturableError where a step is more than operators on tensors of fixed size: another cache that grows, a
    mask that is looked at.
    """

    def __init__(self, model: LanguageModel, ids: Int[Tensor, "b 1"], state: ModelState, steps: int) -> None:
        self._model, self._weights = model, _weights(model)
        given = state.tensors()
        ids = ids.clone()
        with Recording([ids, *given.values()]) as recording:
            x, states = model.through(
                model.embedded(ids), state, mask=None, cu_seqlens=None, form="auto", backend="auto"
            )
            logits = model.logits(x)
        after = ModelState([one for one in states if one is not None])
        nodes = recording.needed([logits, *after.tensors().values()])
        room = min(steps, max(ROOM, int(state.tokens_seen.max())))
        self._rings = rings(nodes, given, after.tensors(), room)
        kinds = [
            [(name, name in self._rings or _kind(x)) for name, x in one.items()] for one in (given, after.tensors())
        ]
        if kinds[0] != kinds[1]:
            raise UncapturableError("The state grows.")
        # The step that was taken to record it has filled one place.
        self.left = room - 1 if any(ring.fills for ring in self._rings.values()) else math.inf
        # Versions of tensors would not tell: what writes through `.data`, as fused optimizers do, counts none.
        self._sources = [(x, x.clone()) for x in recording.sources(nodes)]
        self._build(nodes, ids, logits, state, after)

    def _build(self, nodes: list[Node], ids: Tensor, logits: Tensor, state: ModelState, after: ModelState) -> None:
        self._ids, self._held = ids.clone(), self._turned(state, Ring.laid_out)
        buffers = list(self._held.tensors().values())
        self._program = Program(
            nodes,
            inputs=[(ids, self._ids), *zip(state.tensors().values(), buffers, strict=True)],
            outputs=[(logits, None), *zip(after.tensors().values(), buffers, strict=True)],
        )
        # What torch was tried on while building goes on to be the state after this step.
        for buffer, x in zip(buffers, self._turned(after, Ring.laid_out).tensors().values(), strict=True):
            buffer.copy_(x)
        self.logits = logits

    def _turned(self, state: ModelState, turn: Callable[[Ring, Tensor, Tensor], Tensor]) -> ModelState:
        """A copy of a state, caches turned into rings or back."""
        copies = {}
        for name, x in state.tensors().items():
            ring, block = self._rings.get(name), state[int(name.partition(".")[0])]
            plain = ring is None
            copies[name] = x.clone(memory_format=torch.contiguous_format) if plain else turn(ring, x, block.tokens_seen)
        return state.replace(**copies)

    def __call__(self, ids: Int[Tensor, "b 1"]) -> Float[Tensor, "b 1 rows"]:
        """Logits of the id after this one; the state goes on."""
        assert self.left > 0
        self.left -= 1
        self._ids.copy_(ids)
        self._program.run()
        return self._program.results[0]

    @property
    def state(self) -> ModelState:
        """The state after the last step, as the model returns it; shares nothing with the buffers."""
        return self._turned(self._held, Ring.in_order)

    @property
    def current(self) -> bool:
        """Whether the model is what it was at the capture: the same parts, without hooks, and what was computed once.

        Attributes of its parts that are no tensors are not looked at.
        """
        same = _weights(self._model) == self._weights and not _hooked(self._model)
        return same and all(torch.equal(x, before) for x, before in self._sources)


def capture(model: object, ids: Tensor, state: ModelState, steps: int) -> Captured | None:
    """The captured step, taken once for `ids` (`logits` has its result), or None where the plain one must serve."""
    plain = type(model) is not LanguageModel or model.training or torch.is_grad_enabled()
    if plain or steps < WORTH or not 0 < len(ids) <= FEW or ids.device.type != "cpu" or library().functions is None:
        return None
    assert isinstance(model, LanguageModel)
    if _hooked(model):
        return None
    try:
        return Captured(model, ids, state, steps)
    except UncapturableError:
        return None


def _weights(model: LanguageModel) -> list[tuple[int, int]]:
    every = (x for part in (model.parameters(), model.buffers()) for x in part)
    return [(id(x), x.data_ptr()) for x in every]


def _hooked(model: LanguageModel) -> bool:
    """Whether more happens at a call of a part than its operators tell."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def _kind(x: Tensor) -> tuple:
    return x.dtype, x.shape, x.device
