"""What every layer is: a sequence mixer with state as argument and result."""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from lavagna.forms import FORMS
from lavagna.modules.eight_bit import refuse_to_reset
from lavagna.modules.options import whole
from lavagna.modules.precision import Wide
from lavagna.modules.steps import Steps
from lavagna.state import State


class Mixed(NamedTuple):
    """What a layer returns: the mixed sequence (b, t, d), and the state after it: None where it read both ways."""

    y: Float[Tensor, "b t d"]
    state: State | None


class Layer(Wide, ABC):
    """A sequence mixer, (b, t, d) to (b, t, d), with a memory that it is given and returns.

    A subclass names itself, lists its forms, and says three things: its parameters (`__init__`, whose last line calls
    `reset_parameters`, which alone sets their values), its empty memory (`initial_tensors`), and how it mixes (`mix`).
    Its last projection, whose product a model adds to the residual stream, is called `out`. Masks, packing, defaults,
    checks and the token count are done here, once.

    Parameters that a layer owns itself, not one of its parts, are its dynamics: decays, step sizes, base vectors. They
    are float32 at least in every cast, and `reset_parameters` exempts them from weight decay.
    """

    name: ClassVar[str]
    forms: ClassVar[tuple[str, ...]] = tuple(FORMS)
    # What the paper's block has around the mixer: the kind of its norms (`NORMS`); the feed-forward net behind the
    # mixer (`FEED_FORWARDS`; None where the mixer is the whole block) and its width over d_model; a norm behind the
    # embedding. Two matrices of 4 d have as many weights as the three of a SwiGLU of 8/3 d. An instance may differ.
    block_norm: str = "rms"
    block_mlp: str | None = "swiglu"
    block_mlp_factor: float = 8 / 3
    embedding_norm: bool = False
    # Whether `mix` reads and sets `steps.handed`: what the first layer of a kind in a model gives to the later ones.
    hands_on: ClassVar[bool] = False
    # Whether each output has seen the steps after it too: such a layer has no state to hand on.
    bidirectional: bool = False
    # How many tokens a state that grows with the text holds at most, None where that has no end.
    longest: int | None = None
    # How many heads read each number of such a state.
    readers: int = 1

    def __init__(self, d_model: int) -> None:
        super().__init__()
        whole(self.name, "d_model", d_model)
        self.d_model = d_model

    def reset_parameters(self) -> None:
        """Set every parameter anew, as the paper says: here those of the parts, in a subclass its own besides.

        Nothing else draws random numbers, so a layer built on the meta device, moved by `to_empty` and reset has the
        values of one built in place with the same seed. Raises ValueError where weights were quantized.
        """
        refuse_to_reset(self)
        for part in self.children():
            part.reset_parameters()  # pyright: ignore[reportCallIssue]

    @abstractmethod
    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The tensors of an empty state, batch first, without `tokens_seen`. `dtype` is that of the activations."""

    @abstractmethod
    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        """The mixed sequence and the new tensors of the state. `x` is zero at masked steps; `y` there is not used."""

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before the first token, for `batch` sequences. Memories are float32, float64 for dtype float64."""
        weight = self._weight
        where = weight.device if device is None else torch.device(device)
        tensors = self.initial_tensors(batch, where, dtype or weight.dtype)
        return State(self.name, tensors | {"tokens_seen": torch.zeros(batch, dtype=torch.int64, device=where)})

    def forward(
        self,
        x: Shaped[Tensor, "..."],
        state: State | None = None,
        *,
        mask: Shaped[Tensor, "..."] | None = None,
        cu_seqlens: Shaped[Tensor, "..."] | list[int] | None = None,
        form: str = "auto",
        backend: str = "auto",
    ) -> Mixed:
        """Mix a text (b, t, d) given the state before it; return the mixed text and the state after it.

        `mask` (b, t): a masked step is an exact no-op and `y` is 0 there. `cu_seqlens`: sequences laid end to end in
        one row (b = 1), with one row of state each. Raises ValueError on shapes or options that don't fit.
        """
        options = {"mask": mask, "cu_seqlens": cu_seqlens, "form": form, "backend": backend}
        return self.hand_on(x, state, None, **options)[0]

    def hand_on(
        self,
        x: Shaped[Tensor, "..."],
        state: State | None,
        handed: Float[Tensor, "b t *_"] | None,
        *,
        mask: Shaped[Tensor, "..."] | None = None,
        cu_seqlens: Shaped[Tensor, "..."] | list[int] | None = None,
        form: str = "auto",
        backend: str = "auto",
    ) -> tuple[Mixed, Float[Tensor, "b t *_"] | None]:
        """As a call, given besides what an earlier layer of this kind handed on; and what this one hands on."""
        self._check_input(x)
        if form != "auto" and form not in self.forms:
            raise ValueError(f"{self.name}: form must be one of {', '.join(self.forms)} or auto, but came as {form!r}.")
        fresh = state is None
        steps = Steps(self.name, x, mask=mask, cu_seqlens=cu_seqlens, form=form, backend=backend, fresh=fresh)
        steps.handed = handed
        if state is None:
            state = self.initial_state(steps.sequences, device=x.device, dtype=x.dtype)
        self._check_state(state, steps.sequences, fresh)
        y, tensors = self.mix(steps.hide(x), state, steps)
        if self.bidirectional:
            return Mixed(steps.hide(y), None), steps.handed
        tensors = tensors | {"tokens_seen": state.tokens_seen + steps.counts}
        # Products of tensors that lie otherwise in memory may differ in the last bit: a state read from disk lies so.
        after = State(self.name, {name: tensor.contiguous() for name, tensor in tensors.items()})
        return Mixed(steps.hide(y), after), steps.handed

    @property
    def dtype(self) -> torch.dtype:
        """That of the activations; what the layer itself owns may be wider."""
        return self._weight.dtype

    @property
    def _weight(self) -> Tensor:
        """A matrix, whose dtype is the activations'; what the layer itself owns may be wider."""
        return self.out.weight  # pyright: ignore[reportAttributeAccessIssue, reportReturnType]

    def _check_input(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"{self.name}: x must be (b, t, d) with d = {self.d_model}, but came as {tuple(x.shape)}.")
        if x.dtype != self._weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise ValueError(
                f"{self.name}: x is {x.dtype}, but the layer's weights are {self._weight.dtype}. "
                "Cast one of them with .to(), or call inside torch.autocast."
            )

    def _check_state(self, state: State, sequences: int, fresh: bool) -> None:
        if self.bidirectional and not fresh:
            raise ValueError(
                f"{self.name}: a bidirectional layer takes no state: each of its outputs has seen the steps behind it "
                "too. Pass None, or build it with bidirectional=False."
            )
        if not isinstance(state, State) or state.kind != self.name:
            came = f"the state of {state.kind}" if isinstance(state, State) else type(state).__name__
            raise ValueError(
                f"{self.name}: state must be one of this layer's own, but came as {came}. "
                "Pass what this layer returned, or None to start."
            )
        if state.tokens_seen.shape[0] != sequences:
            raise ValueError(
                f"{self.name}: the state has {state.tokens_seen.shape[0]} rows, but the call has {sequences} "
                "sequences. Pass one row a sequence: state.select(rows)."
            )
        came = {name: tuple(tensor.shape[1:]) for name, tensor in state.tensors().items() if name != "tokens_seen"}
        if not torch.compiler.is_compiling() and not _fits(came, self._state_axes):
            raise ValueError(
                f"{self.name}: this layer's state has, behind the rows, {self._state_axes} (0 grows), but came with "
                f"{came}: a layer of other sizes made it. Pass what this layer returned, or None to start."
            )

    @cached_property
    def _state_axes(self) -> dict[str, tuple[int, ...]]:
        """The axes of each tensor of the state behind the rows; one that is 0 grows with the text."""
        tensors = self.initial_tensors(0, torch.device("meta"), torch.float32)
        return {name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()}


def _fits(came: dict[str, tuple[int, ...]], wanted: dict[str, tuple[int, ...]]) -> bool:
    return came.keys() == wanted.keys() and all(
        len(came[name]) == len(axes) and all(axis in (0, mine) for mine, axis in zip(came[name], axes, strict=True))
        for name, axes in wanted.items()
    )
