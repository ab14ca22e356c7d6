"""A language model: ids in, logits and state out."""

from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lavagna.forms import FORMS
from lavagna.models.block import Block
from lavagna.models.config import ModelConfig
from lavagna.models.head import TiedHead
from lavagna.modules.linear import Linear
from lavagna.modules.norm import RMSNorm
from lavagna.packing import as_mask, as_offsets
from lavagna.state import ModelState, State

# Standard deviation of embeddings and heads (GPT-2).
SPREAD = 0.02


class Predicted(NamedTuple):
    """What a language model returns: logits of the id after each id, and the state after the last one."""

    logits: Float[Tensor, "b t rows"]
    state: ModelState


class LanguageModel(nn.Module):
    """Embedding, blocks, norm, head.

    The state is an argument and a result: `model(ids)` at once and `model(ids[:, :5])`, then `model(ids[:, 5:], state)`
    give the same numbers, for every cut.

    The parts are built without memory, then given memory on the default device, then set by `reset_parameters`; so a
    seeded build equals a build under `torch.device("meta")` followed by `to_empty` and a seeded `reset_parameters`.

    `model.head.weight` is the matrix that makes the logits; with tied embeddings it is `model.embedding.weight` itself,
    after every move and cast too, and neither `parameters()` nor the state dict lists it a second time.

    `model.checkpointing = True` keeps only each block's input for the backward pass and computes the rest again: the
    same loss and gradients, for about a third more time and much less memory.

    >>> import torch
    >>> config = ModelConfig(layer="linear_attention", d_model=32, depth=1, vocab_size=256)
    >>> model = LanguageModel(config)
    >>> ids = torch.tensor([[104, 101, 108, 108, 111]])
    >>> whole, _ = model(ids)
    >>> first, state = model(ids[:, :3])
    >>> second, _ = model(ids[:, 3:], state)
    >>> torch.allclose(whole, torch.cat([first, second], 1), atol=1e-5)
    True
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        where = torch.get_default_device()
        self.config = config
        self.checkpointing = False
        with torch.device("meta"):
            # Given a weight, torch does not draw one, for which it would import its compiler: more than a second.
            rows, width = config.vocab_rows, config.d_model
            self.embedding = nn.Embedding(rows, width, _weight=torch.empty(rows, width))
            self.blocks = nn.ModuleList(Block(config, index) for index in range(config.depth))
            self._refuse_bidirectional()
            self.norm = RMSNorm(config.d_model, eps=config.norm_eps)
            tied = config.tie_embeddings
            self.head = TiedHead(self.embedding) if tied else Linear(config.d_model, config.vocab_rows)
        if where.type != "meta":
            self.to_empty(device=where)
            self.reset_parameters()

    @property
    def _each_block(self) -> list[Block]:
        return cast(list[Block], list(self.blocks))

    def _refuse_bidirectional(self) -> None:
        for index, block in enumerate(self._each_block):
            if block.mixer.bidirectional:
                raise ValueError(
                    f"LanguageModel: block {index} is a bidirectional {block.mixer.name}, which sees the ids "
                    "that are to be predicted. Use bidirectional=False, or a classifier."
                )

    def reset_parameters(self) -> None:
        """Set every parameter and buffer anew: embedding and head N(0, 0.02), the blocks as their papers say."""
        nn.init.normal_(self.embedding.weight, std=SPREAD)
        residuals = sum(block.residuals for block in self._each_block)
        for block in self._each_block:
            block.reset_parameters(residuals)
        self.norm.reset_parameters()
        if not self.config.tie_embeddings:
            nn.init.normal_(self.head.weight, std=SPREAD)

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> ModelState:
        """The state before the first id, for `batch` sequences."""
        return ModelState([block.mixer.initial_state(batch, device=device, dtype=dtype) for block in self._each_block])

    def forward(
        self,
        ids: Shaped[Tensor, "..."],
        state: ModelState | None = None,
        *,
        mask: Shaped[Tensor, "..."] | None = None,
        cu_seqlens: Shaped[Tensor, "..."] | list[int] | None = None,
        form: str = "auto",
        backend: str = "auto",
    ) -> Predicted:
        """Logits (b, t, rows) of the id after each of `ids` (b, t), and the state after them.

        - state: what an earlier call returned; None starts afresh.
        - mask (b, t): a masked id, whatever it is, is an exact no-op; logits there are finite, else unspecified.
        - cu_seqlens: texts laid end to end in one row (b = 1), with one row of state each.
        - form: in a hybrid, used by the layers that have it; the others take their own choice.

        Raises ValueError on shapes, ids or options that don't fit.
        """
        hidden, state = self.hidden(ids, state, mask=mask, cu_seqlens=cu_seqlens, form=form, backend=backend)
        return Predicted(self.head(hidden), state)

    def hidden(
        self,
        ids: Shaped[Tensor, "..."],
        state: ModelState | None = None,
        *,
        mask: Shaped[Tensor, "..."] | None = None,
        cu_seqlens: Shaped[Tensor, "..."] | list[int] | None = None,
        form: str = "auto",
        backend: str = "auto",
    ) -> tuple[Float[Tensor, "b t d"], ModelState]:
        """What `head` turns into logits, and the state: for whoever needs the logits of a few positions only."""
        self._check(ids, state, form)
        ids = ids.long()
        real = None if mask is None else as_mask("LanguageModel", mask, *ids.shape)
        offsets = None if cu_seqlens is None else as_offsets("LanguageModel", cu_seqlens, *ids.shape)
        x = self.embedding(self._known(ids if real is None else ids.masked_fill(~real, 0)))
        states = []
        for index, block in enumerate(self._each_block):
            options = {"mask": real, "cu_seqlens": offsets, "backend": backend}
            options["form"] = form if form in block.mixer.forms else "auto"
            x, after = self._run(block, x, None if state is None else state[index], options)
            states.append(cast(State, after))
        return self.norm(x), ModelState(states)

    def _run(self, block: nn.Module, x: Tensor, state: object, options: dict) -> tuple:
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, state, use_reentrant=False, **options)
        return block(x, state, **options)

    def _known(self, ids: Int[Tensor, "b t"]) -> Int[Tensor, "b t"]:
        """The ids themselves; raises ValueError where one is beyond the vocabulary."""
        if torch.compiler.is_compiling() or ids.is_meta or not ids.numel():
            return ids
        low, high = (int(bound) for bound in torch.aminmax(ids))
        size, rows = self.config.vocab_size, self.config.vocab_rows
        if low < 0 or high >= rows:
            raise ValueError(
                f"LanguageModel: id {low if low < 0 else high} is beyond the vocabulary of {size}"
                f"{f' ({rows} with padding)' if rows > size else ''}: ids run from 0 to {size - 1}. "
                "Is the text encoded with this model's tokenizer?"
            )
        return ids

    def _check(self, ids: Tensor, state: ModelState | None, form: str) -> None:
        if ids.ndim != 2 or ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise ValueError(f"LanguageModel: ids must be integers (b, t), but came as {ids.dtype} {tuple(ids.shape)}.")
        if ids.device != self.embedding.weight.device:
            raise ValueError(
                f"LanguageModel: ids are on {ids.device}, but the model on {self.embedding.weight.device}. "
                "Move them to one device."
            )
        if state is not None and not (isinstance(state, ModelState) and len(state) == self.config.depth):
            came = f"{len(state)} blocks" if isinstance(state, ModelState) else type(state).__name__
            raise ValueError(
                f"LanguageModel: state must be what this model returned, with {self.config.depth} blocks, but came as "
                f"{came}. Pass None to start."
            )
        possible = {name for block in self._each_block for name in block.mixer.forms}
        if form != "auto" and form not in possible:
            listed = ", ".join(name for name in (*FORMS, *sorted(possible - set(FORMS))) if name in possible)
            raise ValueError(f"LanguageModel: form must be one of {listed} or auto, but came as {form!r}.")
