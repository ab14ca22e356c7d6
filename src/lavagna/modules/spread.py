"""How RWKV starts: decays and bonuses spread over channels, projections orthogonal, and nothing for the stream."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.modules.linear import Linear, reset_orthogonal
from lavagna.modules.norm import HeadNorm
from lavagna.modules.place import Place
from lavagna.modules.weight_decay import exempt


def line(count: int, *, device: torch.device) -> Float[Tensor, " count"]:
    """From 0 at the first channel to 1 at the last; 0 where there is one."""
    return torch.arange(count, device=device) / max(count - 1, 1)


def zigzag(count: int, *, device: torch.device) -> Float[Tensor, " count"]:
    """0, 1, -1 and over again."""
    return (torch.arange(count, device=device) + 1) % 3 - 1.0


def reset_decays(log_rate: nn.Parameter, place: Place, *, low: float, span: float) -> None:
    """Logarithms of rates from `low` to `low + span`, most of them low in late layers; exempt from weight decay."""
    # The meta device has no values to set, and torch imports its compiler to find that out.
    if not log_rate.is_meta:
        rises = line(log_rate.numel(), device=log_rate.device) ** (0.7 + 1.3 * place.rising)
        log_rate.detach().copy_((low + span * rises).reshape(log_rate.shape))
    exempt(log_rate)


def reset_bonus(weight: nn.Parameter, place: Place, *, wave: float) -> None:
    """0 in the first layer, from 1 down to 0 in the last, and `wave` times a zigzag; exempt from weight decay."""
    if not weight.is_meta:
        count, device = weight.numel(), weight.device
        falls = place.rising * (1 - line(count, device=device)) + wave * zigzag(count, device=device)
        weight.detach().copy_(falls.reshape(weight.shape))
    exempt(weight)


def reset_projections(receptance: Linear, key: Linear, value: Linear, gate: Linear | None) -> None:
    """RWKV-5 and 6: orthogonal matrices, those of keys and gates a tenth as large."""
    for part, gain in ((receptance, 1), (key, 0.1), (value, 1), (gate, 0.1)):
        if part is not None:
            reset_orthogonal(part.weight, gain=gain)


def reset_output(norm: HeadNorm, out: Linear, place: Place) -> None:
    """RWKV-5 to 7: a new layer adds nothing to the stream; its norm's weights are `((1 + index) / depth)^0.7`."""
    nn.init.zeros_(out.weight)
    nn.init.constant_(norm.weight, ((1 + place.index) / place.depth) ** 0.7)
