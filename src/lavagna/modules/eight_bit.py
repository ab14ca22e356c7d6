"""A linear map's weights in 8 bits, a scale a row: a quarter of the bytes that a step of generation reads."""

import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int8, Shaped
from torch import Tensor, nn

from lavagna.derivatives import beyond_operators
from lavagna.kernels.cpu.library import library
from lavagna.kernels.cpu.linear_few import FEW, linear_few
from lavagna.modules.precision import Wide


class EightBit(Wide):
    """`x W^T + b` with `W = diag(scale) integers`, in the dtype of x: weights rounded, activations not.

    Few rows on a CPU go through `linear_few`, which reads each integer once; else torch multiplies by the integers,
    which float32 and bfloat16 hold exactly. Gradients flow to x and b.
    """

    def __init__(self, integers: Int8[Tensor, "n k"], scale: Float32[Tensor, " n"]) -> None:
        super().__init__()
        self.register_buffer("integers", integers)
        self.register_buffer("scale", scale)

    def forward(self, x: Shaped[Tensor, "... k"], bias: Shaped[Tensor, " n"] | None = None) -> Shaped[Tensor, "... n"]:
        integers, scale = self.get_buffer("integers"), self.get_buffer("scale")
        known = x.dtype in (torch.float32, torch.bfloat16) and x.device.type == "cpu"
        known = known and beyond_operators() is None
        if known and x.numel() <= FEW * x.shape[-1] and library().functions is not None:
            return linear_few(x, integers, None if bias is None else bias.to(x.dtype), scale)
        if x.dtype == torch.float16:
            # It ends at 65504, which products of integers pass.
            y = F.linear(x, (integers * scale[:, None]).to(x.dtype))
        else:
            y = (F.linear(x, integers.to(x.dtype)) * scale).to(x.dtype)
        return y if bias is None else y + bias

    def extra_repr(self) -> str:
        rows, columns = self.get_buffer("integers").shape
        return f"{columns}, {rows}"


def refuse_to_reset(part: nn.Module) -> None:
    """Raise ValueError where weights anywhere in a module are in 8 bits: nothing sets them anew."""
    if any(isinstance(each, EightBit) for each in part.modules()):
        raise ValueError(
            "reset_parameters: weights in 8 bits can't be set anew. Reset the model that they were made of, and "
            "quantize it again."
        )
