"""A language model: ids in, logits and state out."""

from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from lavagna.models.config import ModelConfig
from lavagna.models.head import TiedHead
from lavagna.models.stack import SPREAD, Stack
from lavagna.modules.eight_bit import refuse_to_reset
from lavagna.modules.linear import Linear
from lavagna.modules.norm import NORMS
from lavagna.modules.weight_decay import exempt
from lavagna.packing import as_mask, as_offsets
from lavagna.state import ModelState, State


class Predicted(NamedTuple):
    """What a language model returns: logits of the id after each id, and the state after the last one."""

    logits: Float[Tensor, "b t rows"]
    state: ModelState


class LanguageModel(Stack[ModelConfig]):
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

    def build(self) -> None:
        """Make the embedding, the blocks and the head."""
        rows, width = self.config.vocab_rows, self.config.d_model
        # Given a weight, torch does not draw one, for which it would import its compiler: more than a second.
        self.embedding = nn.Embedding(rows, width, _weight=torch.empty(rows, width))
        self.build_blocks()
        if (index := self.first_bidirectional) is not None:
            raise self.refusal(
                f"block {index} is a bidirectional {self.each_block[index].mixer.name}, which sees the ids that are to "
                "be predicted. Use bidirectional=False, or a classifier."
            )
        config = self.config
        first = self.each_block[0]
        normed = first.mixer.embedding_norm if config.embedding_norm is None else config.embedding_norm
        self.embedding_norm = NORMS[first.around.norm](width, eps=config.norm_eps) if normed else None
        tied = config.tie_embeddings
        self.head = TiedHead(self.embedding, config.head_bias) if tied else Linear(width, rows, bias=config.head_bias)

    def reset_parameters(self) -> None:
        """Set every parameter and buffer anew: embedding and head N(0, 0.02), the blocks as their papers say.

        Raises ValueError on a quantized model.
        """
        refuse_to_reset(self)
        nn.init.normal_(self.embedding.weight, std=SPREAD)
        if self.embedding_norm is not None:
            self.embedding_norm.reset_parameters()  # pyright: ignore[reportCallIssue]
        self.reset_blocks()
        if not self.config.tie_embeddings:
            nn.init.normal_(self.head.weight, std=SPREAD)
        if self.head.bias is not None:
            nn.init.zeros_(self.head.bias)
            exempt(self.head.bias)

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> ModelState:
        """The state before the first id, for `batch` sequences."""
        return ModelState(self.initial_states(batch, device, dtype))

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
        return Predicted(self.logits(hidden), state)

    def logits(self, hidden: Float[Tensor, "*axes d"]) -> Float[Tensor, "*axes rows"]:
        """What the head, and its cap, make of what `hidden` returned."""
        logits, cap = self.head(hidden), self.config.logit_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

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
        """What `logits` turns into them, and the state: for whoever needs the logits of a few positions only."""
        self.check_ids(ids)
        self.check_state(state, self.config.depth)
        self.check_form(form)
        ids = ids.long()
        real = None if mask is None else as_mask("LanguageModel", mask, *ids.shape)
        offsets = None if cu_seqlens is None else as_offsets("LanguageModel", cu_seqlens, *ids.shape)
        ids = self.known(
            ids if real is None else ids.masked_fill(~real, 0), self.config.vocab_size, self.config.vocab_rows
        )
        x, states = self.through(self.embedded(ids), state, mask=real, cu_seqlens=offsets, form=form, backend=backend)
        return x, ModelState(cast(list[State], states))

    def embedded(self, ids: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        """What the blocks are given for ids that are known to be in the vocabulary."""
        x, scale = self.embedding(ids), self.config.embedding_scale
        x = x if scale == 1 else x * scale
        return x if self.embedding_norm is None else self.embedding_norm(x)
