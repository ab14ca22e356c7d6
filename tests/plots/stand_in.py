"""A model of one block that is small enough to draw: a gated delta rule over an embedding, nothing else."""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from lavagna import ModelState, State, gated_householder, recur

HEADS, KEYS, VALUES = 2, 6, 4


class StandIn(nn.Module):
    """Ids to reads, with a state like a language model's; `kind` names its only block, `matrix` the block's memory."""

    def __init__(self, matrix: str = "memory") -> None:
        super().__init__()
        self.matrix = matrix
        self.keys = nn.Embedding(400, HEADS * KEYS)
        self.values = nn.Embedding(400, HEADS * VALUES)

    def steps(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Unit keys and values of each id."""
        keys = normalize(self.keys(ids).unflatten(-1, (HEADS, KEYS)), dim=-1)
        return keys, self.values(ids).unflatten(-1, (HEADS, VALUES))

    def forward(self, ids: Tensor, state: ModelState | None = None) -> tuple[Tensor, ModelState]:
        keys, values = self.steps(ids)
        fade, beta = keys.new_full((1, 1, 1, 1), -0.1), keys.new_full((1, 1, 1, 1), 0.8)
        start = None if state is None else state[0].tensors()[self.matrix]
        output, memory = recur(gated_householder(fade, keys, beta), keys, keys, beta * values, start)
        seen = torch.zeros(len(ids), dtype=torch.int64)
        return output, ModelState([State("stand_in", {self.matrix: memory, "tokens_seen": seen})])
