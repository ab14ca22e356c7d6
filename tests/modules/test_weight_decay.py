"""The mark that spares a parameter from weight decay."""

import torch
from torch import nn

from lavagna.modules.weight_decay import exempt


def test_what_is_exempt_is_marked_and_nothing_is_skipped_over_in_silence():
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    exempt(first, None)
    assert first.no_weight_decay and not hasattr(second, "no_weight_decay")
