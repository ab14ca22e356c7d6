"""What training makes small, and how it is judged: the mean negative log-likelihood of the next token."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lavagna.data import Batches
from lavagna.data.batches import Tokens
from lavagna.training.config import TrainConfig
from lavagna.training.distributed import World


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
        was_training = model.training
        model.eval()
        with torch.no_grad():
            for batch in range(self._count):
                for low, high in portions(start, stop, self._config.micro_batch):
                    rows = self._batches.rows(batch, low, high).to(world.device)
                    weight = (high - low) / ((stop - start) * self._count)
                    total += next_token_loss(model, rows, self._config.dtype) * weight
        model.train(was_training)
        return world.mean(total).item()


def portions(start: int, stop: int, size: int | None) -> Iterator[tuple[int, int]]:
    """Cut a range in pieces of `size`, the last one smaller if need be; one piece for None."""
    size = size or stop - start
    return ((low, min(low + size, stop)) for low in range(start, stop, size))
