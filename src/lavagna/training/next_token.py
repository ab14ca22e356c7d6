"""Learning to say the next token: the loss of a language model, and how it is judged."""

import math
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lavagna.data import Batches, Splits
from lavagna.data.batches import Tokens
from lavagna.models import ModelConfig, StackConfig
from lavagna.training.config import TrainConfig
from lavagna.training.distributed import World
from lavagna.training.objective import Objective, judging, portions


def next_token_loss(model: nn.Module, rows: Int[Tensor, "b t"], dtype: str = "float32") -> Float[Tensor, ""]:
    """The mean of `-log p(rows[:, i + 1] | rows[:, :i + 1])` in nats, over all rows and places.

    `dtype` "bfloat16" runs the model under autocast; logits become float32 before the softmax.
    """
    with torch.autocast(rows.device.type, torch.bfloat16, enabled=dtype == "bfloat16"):
        logits, _ = model(rows[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """A loss in nats a token as bits a byte of text: `loss / (ln 2 * bytes_per_token)`."""
    return loss / (math.log(2) * bytes_per_token)


class Validation:
    """A fixed sample of validation text: the same windows at each evaluation, whatever the number of processes.

    A validation part shorter than the context is read in shorter windows. `possible` is False where it has fewer than
    two tokens; there is nothing to predict then.
    """

    def __init__(self, tokens: Tokens, config: TrainConfig) -> None:
        context = min(config.context, len(tokens) - 1)
        self._config = config
        self.possible = context >= 1
        if self.possible:
            self._batches = Batches(tokens, batch=config.batch, context=context, seed=0)
            self._count = min(config.evaluate_batches, -(-self._batches.windows // config.batch))

    def loss(self, model: nn.Module, world: World) -> float:
        """The mean loss over the sample, the model in eval mode for the while."""
        start, stop = world.share(self._config.batch)
        total = torch.zeros((), dtype=torch.float64, device=world.device)
        with judging(model):
            for batch in range(self._count):
                for low, high in portions(start, stop, self._config.micro_batch):
                    rows = self._batches.rows(batch, low, high).to(world.device)
                    weight = (high - low) / ((stop - start) * self._count)
                    total += next_token_loss(model, rows, self._config.dtype) * weight
        return world.mean(total).item()


class NextToken(Objective):
    """The mean negative log-likelihood of each next token of a text, judged by a sample of the validation part."""

    kind: ClassVar[str] = ModelConfig.kind
    speed: ClassVar[str] = "tokens_per_second"

    def __init__(self, texts: Splits, config: TrainConfig, tokenizer: str | None) -> None:
        self._texts, self._config = texts, config
        self._batches = Batches(texts.train, batch=config.batch, context=config.context, seed=config.seed)
        self._validation = Validation(texts.validation, config)
        self.per_update = config.tokens_per_step
        sizes = {"train_tokens": len(texts.train), "validation_tokens": len(texts.validation)}
        self.about = sizes | {"tokenizer": tokenizer}

    def check(self, model: StackConfig) -> None:
        """Raise ValueError where the model's vocabulary is not the text's."""
        assert isinstance(model, ModelConfig)
        wanted = self._texts.train.vocab_size
        if wanted > model.vocab_size:
            raise ValueError(
                f"train: the text is encoded with a vocabulary of {wanted}, but the model's is {model.vocab_size}. "
                f"Build the model with vocab_size={wanted}."
            )

    def rows(self, step: int, start: int, stop: int) -> Any:
        """Windows of the text."""
        return self._batches.rows(step, start, stop)

    def loss(self, model: nn.Module, rows: Any) -> Tensor:
        """Nats a token."""
        return next_token_loss(model, rows, self._config.dtype)

    def told(self, loss: float) -> dict[str, float]:
        """The loss in bits a byte of the training text."""
        return {"bits_per_byte": bits_per_byte(loss, self._texts.train.bytes_per_token)}

    def judge(self, model: nn.Module, world: World) -> dict[str, float]:
        """The loss on the sample, in nats a token and in bits a byte."""
        if not self._validation.possible:
            return {}
        loss = self._validation.loss(model, world)
        bits = bits_per_byte(loss, self._texts.validation.bytes_per_token)
        return {"validation_loss": loss, "validation_bits_per_byte": bits}
