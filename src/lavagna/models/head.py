"""The last matrix of a language model where it is the first one too."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lavagna.modules.eight_bit import EightBit


class TiedHead(nn.Module):
    """Logits by the embedding's matrix, `x E^T + b`. It reads the embedding's; its own is at most the bias.

    After `quantize` it reads a copy of that matrix in 8 bits.
    """

    quantizable = True

    def __init__(self, embedding: nn.Embedding, bias: bool = False) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(embedding.num_embeddings)) if bias else None
        self.eight_bit: EightBit | None = None
        # Past the module's own bookkeeping, which would list the embedding's weight under a second name.
        self.__dict__["embedding"] = embedding

    @property
    def weight(self) -> Tensor:
        """The embedding's weight itself."""
        return self.__dict__["embedding"].weight

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t rows"]:
        """Logits of every row of the embedding."""
        return F.linear(x, self.weight, self.bias) if self.eight_bit is None else self.eight_bit(x, self.bias)

    def quantize(self, eight_bit: EightBit) -> None:
        """Make logits by these weights; the embedding keeps its own."""
        self.eight_bit = eight_bit
