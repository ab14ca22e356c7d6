"""A language model that says what it is told to, for tests of what is made of its logits."""

import torch

import lavagna as lv
from lavagna.models import Predicted


class Scripted(lv.LanguageModel):
    """Says `ids` one after the other, whatever it reads, and counts the steps it takes."""

    def __init__(self, ids, *, vocab_size=256):
        super().__init__(lv.ModelConfig(layer="linear_attention", d_model=16, depth=1, vocab_size=vocab_size))
        self.ids = torch.tensor([*ids, 0])
        self.calls = []

    def forward(self, ids, state=None, **options):
        seen = torch.zeros(len(ids), dtype=torch.int64) if state is None else state.tokens_seen
        self.calls.append(tuple(ids.shape))
        logits, state = super().forward(ids, state, **options)
        place = (seen[:, None] + torch.arange(ids.shape[1])).clamp(max=len(self.ids) - 1)
        return Predicted(50.0 * torch.nn.functional.one_hot(self.ids[place], logits.shape[-1]), state)
