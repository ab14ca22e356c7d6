"""A model whose linear maps keep their weights in 8 bits, for generation."""

import copy
from typing import Any, cast

from jaxtyping import Float32, Int8, Shaped
from torch import Tensor, nn

from lavagna.extras import optional
from lavagna.models.head import TiedHead
from lavagna.models.language_model import LanguageModel
from lavagna.modules.eight_bit import EightBit
from lavagna.modules.linear import Linear

# Numbers from which on a matrix is worth rounding.
LEAST = 1 << 10


def quantize(model: LanguageModel, *, bits: int = 8) -> LanguageModel:
    """A copy of the model, in eval mode, with 8-bit weights in its linear maps and its head; the given one stays.

    A row of a matrix becomes integers times one float32 scale, so that a weight is off by at most half a scale, a
    255th of its row's largest. Activations keep their dtype. What decays, gates and step sizes are made of keeps its
    width, as do convolutions, norms and the embedding. torchao quantizes; the products are this package's own.

    Such a model generates, and gradients flow through it to its input, but it is neither trained nor saved: none of its
    parameters requires a gradient. Save the one that it was made of and quantize again after loading.

    Raises ValueError for other bits, another kind of model or one without numbers, a matrix with NaN or infinity, and
    where torchao is not installed.
    """
    if bits != 8:
        raise ValueError(f"quantize: bits must be 8, but came as {bits!r}.")
    if not isinstance(model, LanguageModel):
        raise ValueError(f"quantize: the model must be a LanguageModel, but came as {type(model).__name__}.")
    if any(x.is_meta for x in model.parameters()):
        raise ValueError("quantize: the model is on the meta device and has no numbers. Use to_empty and load some.")
    weights = {
        name: part for name, part in model.named_modules() if isinstance(part, Linear | TiedHead) and _fits(part)
    }
    _check_finite(model, weights)
    # The large matrices are not copied, only to be thrown away: in their places come some without rows.
    large = [part.weight for part in weights.values() if isinstance(part, Linear)]
    spared: dict[int, Any] = {id(x): nn.Parameter(x.new_empty(0, x.shape[1]), requires_grad=False) for x in large}
    twin = copy.deepcopy(model, spared)
    for name, part in weights.items():
        mine = cast(Linear | TiedHead, twin.get_submodule(name))
        mine.quantize(EightBit(*rounded(part.weight.detach())))
    return twin.eval().requires_grad_(False)


def rounded(weight: Shaped[Tensor, "n k"]) -> tuple[Int8[Tensor, "n k"], Float32[Tensor, " n"]]:
    """torchao's integers and scales, one a row, for a matrix. Raises ValueError where torchao is not installed."""
    torchao = optional("torchao.quantization", call="quantize", extra="int8", why="torchao rounds the weights")
    linear = nn.Linear(1, 1, bias=False, device="meta")
    linear.weight = nn.Parameter(weight.float(), requires_grad=False)
    # Another way than its own would set options of torch's compiler, for the whole process.
    torchao.quantize_(linear, torchao.Int8WeightOnlyConfig(set_inductor_config=False))
    return linear.weight.qdata.contiguous(), linear.weight.scale.flatten().float()  # pyright: ignore


def _check_finite(model: LanguageModel, parts: dict[str, Linear | TiedHead]) -> None:
    names = {id(x): name for name, x in model.named_parameters()}
    # In float32, in which they are rounded.
    bad = [names[id(part.weight)] for part in parts.values() if not part.weight.float().isfinite().all()]
    if bad:
        raise ValueError(
            f"quantize: 8 bits have no NaN or infinity, which {', '.join(bad)} would hold in float32. "
            "Load or train it anew."
        )


def _fits(part: Linear | TiedHead) -> bool:
    """Whether a part's weights are in full width, large enough to be worth rounding, and read by its product alone."""
    return part.eight_bit is None and part.quantizable and part.weight.numel() >= LEAST
