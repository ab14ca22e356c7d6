"""What every model is inside: blocks over one another, and a norm behind the last."""

from abc import ABC, abstractmethod
from typing import Generic, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lavagna.forms import FORMS
from lavagna.models.block import Block
from lavagna.models.stack_config import StackConfig
from lavagna.modules.norm import NORMS
from lavagna.state import ModelState, State

C = TypeVar("C", bound=StackConfig)
# Standard deviation of embeddings and heads (GPT-2).
SPREAD = 0.02


class Stack(nn.Module, ABC, Generic[C]):
    """Blocks over one another and a norm; a kind of model says what stands before and behind them.

    The parts are built without memory, then given memory on the default device, then set by `reset_parameters`; so a
    seeded build equals a build under `torch.device("meta")` followed by `to_empty` and a seeded `reset_parameters`.

    `checkpointing = True` keeps only each block's input for the backward pass and computes the rest again: the same
    loss and gradients, for about a third more time and much less memory.
    """

    config: C

    def __init__(self, config: C) -> None:
        super().__init__()
        where = torch.get_default_device()
        self.config = config
        self.checkpointing = False
        with torch.device("meta"):
            self.build()
        if where.type != "meta":
            self.to_empty(device=where)
            self.reset_parameters()

    @abstractmethod
    def build(self) -> None:
        """Make every part, in the order in which numbers pass them; `build_blocks` makes the stack."""

    @abstractmethod
    def reset_parameters(self) -> None:
        """Set every parameter and buffer anew."""

    @abstractmethod
    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> ModelState:
        """The state before the first step, for `batch` sequences."""

    def build_blocks(self) -> None:
        """Make the blocks and the norm behind them, which is of the last block's kind."""
        self.blocks = nn.ModuleList(Block(self.config, index) for index in range(self.config.depth))
        self.norm = NORMS[self.each_block[-1].around.norm](self.config.d_model, eps=self.config.norm_eps)

    def reset_blocks(self) -> None:
        """Set what `build_blocks` made, as the papers say."""
        residuals = sum(block.residuals for block in self.each_block)
        for block in self.each_block:
            block.reset_parameters(residuals)
        self.norm.reset_parameters()  # pyright: ignore[reportCallIssue]

    @property
    def each_block(self) -> list[Block]:
        """The blocks, first to last."""
        return cast(list[Block], list(self.blocks))

    @property
    def first_bidirectional(self) -> int | None:
        """The first block whose layer reads its sequence in both directions; a model that has one has no state."""
        return next((index for index, block in enumerate(self.each_block) if block.mixer.bidirectional), None)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return cast(Tensor, self.norm.weight).device

    def initial_states(self, batch: int, device: torch.device | str | None, dtype: torch.dtype | None) -> list[State]:
        """Each block's state before the first step, for `batch` sequences."""
        return [block.initial_state(batch, device=device, dtype=dtype) for block in self.each_block]

    def through(
        self,
        x: Float[Tensor, "b t d"],
        state: ModelState | None,
        *,
        mask: Bool[Tensor, "b t"] | None,
        cu_seqlens: list[int] | None,
        form: str,
        backend: str,
    ) -> tuple[Float[Tensor, "b t d"], list[State | None]]:
        """What the blocks and the norm make of a sequence, and the states after it; None of what reads both ways."""
        states, handed = [], {}
        for index, block in enumerate(self.each_block):
            options = {"mask": mask, "cu_seqlens": cu_seqlens, "backend": backend}
            options["form"] = form if form in block.mixer.forms else "auto"
            given, name = None if state is None else state[index], block.mixer.name
            x, after, handed[name] = self._run(block, x, given, handed.get(name), options)
            states.append(after)
        return self.norm(x), states

    def _run(self, block: nn.Module, x: Tensor, state: object, handed: Tensor | None, options: dict) -> tuple:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, state, handed, use_reentrant=False, **options)
        return block(x, state, handed, **options)

    def known(self, ids: Int[Tensor, "b t"], size: int, rows: int) -> Int[Tensor, "b t"]:
        """The ids themselves; raises ValueError where one is beyond the vocabulary."""
        if torch.compiler.is_compiling() or ids.is_meta or not ids.numel():
            return ids
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= rows:
            raise self.refusal(
                f"id {low if low < 0 else high} is beyond the vocabulary of {size}"
                f"{f' ({rows} with padding)' if rows > size else ''}: ids run from 0 to {size - 1}. "
                "Is the text encoded with this model's tokenizer?"
            )
        return ids

    def refusal(self, text: str) -> ValueError:
        """An error that names this kind of model."""
        return ValueError(f"{type(self).__name__}: {text}")

    def check_ids(self, ids: Tensor) -> None:
        """Raise ValueError unless these are integers (b, t) where the model is."""
        if ids.ndim != 2 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise self.refusal(f"ids must be integers (b, t), but came as {ids.dtype} {tuple(ids.shape)}.")
        self.check_place("ids", ids)

    def check_place(self, name: str, x: Tensor) -> None:
        """Raise ValueError unless a tensor is where the model is."""
        if x.device != self.device:
            raise self.refusal(f"{name} are on {x.device}, but the model on {self.device}. Move them to one device.")

    def check_form(self, form: str) -> None:
        """Raise ValueError on a form that no block has."""
        possible = {name for block in self.each_block for name in block.mixer.forms}
        if form != "auto" and form not in possible:
            listed = ", ".join(name for name in (*FORMS, *sorted(possible - set(FORMS))) if name in possible)
            raise self.refusal(f"form must be one of {listed} or auto, but came as {form!r}.")

    def check_state(self, state: ModelState | None, entries: int) -> None:
        """Raise ValueError unless a state has as many entries as this model's."""
        if state is not None and not (isinstance(state, ModelState) and len(state) == entries):
            came = f"{len(state)} blocks" if isinstance(state, ModelState) else type(state).__name__
            raise self.refusal(
                f"state must be what this model returned, with {entries} blocks, but came as {came}. "
                "Pass None to start."
            )
