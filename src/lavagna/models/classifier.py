"""A sequence classifier: numbers or ids in, one row of logits a sequence out."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from lavagna.models.config import ClassifierConfig
from lavagna.models.pooling import initial_pooled, pool, read
from lavagna.models.stack import SPREAD, Stack
from lavagna.modules.linear import Linear
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import ModelState


class Classified(NamedTuple):
    """What a classifier returns: the logits of each sequence's classes, and the state after its last step."""

    logits: Float[Tensor, "n classes"]
    state: ModelState | None


class SequenceClassifier(Stack[ClassifierConfig]):
    """Encoder, blocks, norm, pooling over the real steps, head.

        logits = head(pool_t norm(blocks(encoder(x)))_t)

    `x` is (b, t, features), floating, or ids (b, t), as the configuration says. Layers that read in both directions
    are welcome here: a sequence is judged when it is over.

    The state is an argument and a result, and holds what pooling remembers too, as its last entry: a sequence that
    comes in pieces has, after the last one, the logits of the whole, and after each one those of what came so far.
    With a layer that reads in both directions there is no state: it is None, and none can be given.

    A sequence without a real step has the logits of a pooled zero: the head's bias.

    >>> import torch
    >>> model = SequenceClassifier(ClassifierConfig("linear_attention", 32, 1, classes=10, features=2))
    >>> x = torch.randn(3, 7, 2)
    >>> whole, _ = model(x)
    >>> _, state = model(x[:, :4])
    >>> torch.allclose(whole, model(x[:, 4:], state).logits, atol=1e-5)
    True
    """

    def build(self) -> None:
        """Make the encoder, the blocks and the head."""
        config = self.config
        if config.features is not None:
            self.encoder = Linear(config.features, config.d_model, bias=True)
        else:
            rows = config.vocab_size
            assert rows is not None
            # Given a weight, torch does not draw one, for which it would import its compiler: more than a second.
            self.encoder = nn.Embedding(rows, config.d_model, _weight=torch.empty(rows, config.d_model))
        self.build_blocks()
        self.head = Linear(config.d_model, config.classes, bias=True)

    def reset_parameters(self) -> None:
        """Set every parameter and buffer anew: embedding and head N(0, 0.02), an encoder of numbers as `Linear`."""
        if isinstance(self.encoder, Linear):
            self.encoder.reset_parameters()
        else:
            nn.init.normal_(self.encoder.weight, std=SPREAD)
        self.reset_blocks()
        nn.init.normal_(self.head.weight, std=SPREAD)
        nn.init.zeros_(self.head.get_parameter("bias"))
        exempt(self.head.bias)

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> ModelState:
        """The state before the first step, for `batch` sequences. Raises ValueError where a layer reads both ways."""
        self._check_direction()
        weight = self.head.weight
        pooled = initial_pooled(
            self.config.pooling, batch, self.config.d_model, device or weight.device, dtype or weight.dtype
        )
        return ModelState([*self.initial_states(batch, device, dtype), pooled])

    def forward(
        self,
        x: Shaped[Tensor, "..."],
        state: ModelState | None = None,
        *,
        mask: Shaped[Tensor, "..."] | None = None,
        cu_seqlens: Shaped[Tensor, "..."] | list[int] | None = None,
        form: str = "auto",
        backend: str = "auto",
    ) -> Classified:
        """Logits (n, classes) of each sequence in `x`, (b, t, features) or ids (b, t), and the state after them.

        - state: what an earlier call returned; None starts afresh.
        - mask (b, t), of sequences of unequal lengths, padded anywhere: a masked step is an exact no-op, NaN included.
        - cu_seqlens: sequences laid end to end in one row (b = 1); each has its row of logits.
        - form: in a hybrid, used by the layers that have it; the others take their own choice.

        Raises ValueError on shapes, ids or options that don't fit.
        """
        self._check(x, state, form)
        steps = Steps("SequenceClassifier", x, mask=mask, cu_seqlens=cu_seqlens)
        hidden, states = self.through(
            self._encoded(x, steps), state, mask=steps.mask, cu_seqlens=steps.offsets, form=form, backend=backend
        )
        before = None if state is None else state[self.config.depth]
        after = pool(self.config.pooling, hidden, steps, before)
        logits = self.head(read(after).to(hidden.dtype))
        kept = [one for one in states if one is not None]
        return Classified(logits, ModelState([*kept, after]) if len(kept) == len(states) else None)

    def _encoded(self, x: Tensor, steps: Steps) -> Tensor:
        size = self.config.vocab_size
        return self.encoder(steps.hide(x) if size is None else self.known(steps.hide(x.long()), size, size))

    def _check(self, x: Tensor, state: ModelState | None, form: str) -> None:
        if self.config.vocab_size is not None:
            self.check_ids(x)
        else:
            self._check_features(x)
        if state is not None:
            self._check_direction()
            self.check_state(state, self.config.depth + 1)
        self.check_form(form)

    def _check_features(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.config.features or not x.is_floating_point():
            raise self.refusal(
                f"x must be floating (b, t, features) with features = {self.config.features}, but came as {x.dtype} "
                f"{tuple(x.shape)}."
            )
        if x.dtype != self.head.weight.dtype and not torch.is_autocast_enabled(x.device.type):
            raise self.refusal(
                f"x is {x.dtype}, but the model's weights are {self.head.weight.dtype}. "
                "Cast one of them with .to(), or call inside torch.autocast."
            )
        self.check_place("the numbers", x)

    def _check_direction(self) -> None:
        if self.first_bidirectional is not None:
            raise self.refusal(
                "a layer of this model reads in both directions, so it has no state. Give whole sequences, without one."
            )
