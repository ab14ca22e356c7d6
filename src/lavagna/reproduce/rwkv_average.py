"""RWKV's average: what one channel of RWKV-4 makes of three values, by hand and in every form."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import scalar
from lavagna.dispatch import recur
from lavagna.forms import FORMS
from lavagna.modules.steps import Steps
from lavagna.modules.wkv import initial_sums, wkv
from lavagna.reproduce.row import Row, row

TITLE = "The values 6, 7, 8 with weights 1/2, 1, 2 average to 26/3.5, about 7.43, be their common key 0, 100 or -100."
SOURCE = "WKV of Peng et al. 2023, arXiv 2305.13048, with everything before halved and the current value doubled."

VALUES = (6.0, 7.0, 8.0)
WEIGHTS = (0.5, 1.0, 2.0)
KEPT, BONUS = 0.5, 2.0
PUBLISHED = 26 / 3.5


def by_hand(values: Float[Tensor, " t"], *, form: str) -> Float[Tensor, " t"]:
    """The average after each value as one memory with two value rows, the sum and the count, read before the write.

    >>> by_hand(torch.tensor([6.0, 7.0], dtype=torch.float64), form="scan").tolist()
    [6.0, 6.666666666666667]
    """
    rows = torch.stack([values, torch.ones_like(values)], -1)[None, :, None]
    ones = torch.ones_like(rows[..., :1])
    before = recur(scalar(ones[:, :1] * math.log(KEPT)), ones, ones, rows, form=form, read="before").output
    total, count = (before + BONUS * rows)[0, :, 0].unbind(-1)
    return total / count


def by_wkv(values: Float[Tensor, " t"], key: float, *, form: str) -> Float[Tensor, " t"]:
    """The same by the function that RWKV-4 uses, where every value has the same key."""
    v = values[None, :, None]
    k, (w, u) = torch.full_like(v, key), (values.new_tensor([math.log(x)]) for x in (KEPT, BONUS))
    return wkv(w, u, k, v, **initial_sums(1, 1, v.device, v.dtype), steps=Steps("wkv", v, form=form)).y.flatten()


def rows(*, seed: int = 0) -> list[Row]:
    """The average after the third value, each value's weight in it, and keys whose exponentials no float32 holds."""
    values = torch.tensor(VALUES, dtype=torch.float64)
    found = [
        row("rwkv_average", "the average as printed", 7.43, by_hand(values, form="recurrent")[-1].item(), within=0.005)
    ]
    for form in FORMS:
        ours = by_hand(values, form=form)[-1].item()
        found.append(row("rwkv_average", f"{form}: sum over count", PUBLISHED, ours, within=1e-12))
        for key in (0.0, 100.0, -100.0, 1000.0):
            ours = by_wkv(values, key, form=form)[-1].item()
            found.append(row("rwkv_average", f"{form}: every key {key:g}", PUBLISHED, ours, within=1e-12))
    for i, weight in enumerate(WEIGHTS):
        one = torch.zeros_like(values)
        one[i] = 1.0
        share = by_wkv(one, 0.0, form="recurrent")[-1].item() * sum(WEIGHTS)
        found.append(row("rwkv_average", f"weight of {VALUES[i]:g}", weight, share, within=1e-12))
    return found
