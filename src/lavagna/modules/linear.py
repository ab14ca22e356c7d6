"""Linear maps that draw no random numbers until `reset_parameters` is called."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor, nn

from lavagna.autocast import without_autocast
from lavagna.modules.eight_bit import EightBit
from lavagna.modules.precision import wide, wide_dtype
from lavagna.modules.weight_decay import exempt


class Linear(nn.Module):
    """`x W^T + b` over the last axis. The constructor leaves the values open: `reset_parameters` sets them.

    So a model built on the meta device, moved by `to_empty` and reset has the values of one built in place with the
    same seed. Weights (d_out, d_in); after `quantize`, `eight_bit` has them.
    """

    # Whether the weights may be kept in 8 bits: not where something else than the product reads them.
    quantizable = True

    def __init__(self, d_in: int, d_out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in))
        self.bias = nn.Parameter(torch.empty(d_out)) if bias else None
        self.eight_bit: EightBit | None = None

    def reset_parameters(self) -> None:
        """Weights uniform within +-d_in^-1/2 (LeCun et al. 1998, as torch has it), bias zero."""
        bound = self.weight.shape[1] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        exempt(self.bias)

    def forward(self, x: Shaped[Tensor, "... d_in"]) -> Shaped[Tensor, "... d_out"]:
        return self.product(x, self.bias)

    def product(self, x: Shaped[Tensor, "... d_in"], bias: Shaped[Tensor, " d_out"] | None) -> Tensor:
        """`x W^T + bias`."""
        return F.linear(x, self.weight, bias) if self.eight_bit is None else self.eight_bit(x, bias)

    def quantize(self, eight_bit: EightBit) -> None:
        """Keep these weights in place of those in full width."""
        # What asks for the dtype or the width finds them in a matrix without rows.
        self.weight = nn.Parameter(self.weight.new_empty(0, self.weight.shape[1]), requires_grad=False)
        self.eight_bit = eight_bit

    def extra_repr(self) -> str:
        if self.eight_bit is not None:
            return f"bias={self.bias is not None}"
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, bias={self.bias is not None}"


class OutLinear(Linear):
    """A linear map that ends a part: what it reads, products that no norm brought down, may lie beyond float16."""

    def forward(
        self,
        x: Shaped[Tensor, "... d_in"],
        dtype: torch.dtype | None = None,
        *,
        factor: Shaped[Tensor, "... d_out"] | None = None,
    ) -> Shaped[Tensor, "... d_out"]:
        """`factor * (x W^T + b)` in `dtype`, that of the activations, which `x` and `factor` may be wider than.

        float16 ends at 65504: steps with larger numbers than 16 are taken over a unit that is put back in float32.
        """
        dtype = x.dtype if dtype is None else dtype
        if dtype != torch.float16:
            y = super().forward(x.to(dtype))
            return y if factor is None else (factor * y).to(y.dtype)
        x = wide(x)
        unit = (x.detach().abs().amax(-1, keepdim=True) / 16).clamp_min(1)
        y = wide(self.product((x / unit).to(dtype), None)) * unit
        y = y if self.bias is None else y + self.bias
        return (y if factor is None else factor * y).to(dtype)


class WideLinear(Linear):
    """A linear map computed in float32 at least, under autocast and with bfloat16 weights too: for decays and gates."""

    quantizable = False

    def forward(self, x: Shaped[Tensor, "... d_in"]) -> Shaped[Tensor, "... d_out"]:
        with without_autocast(x):
            bias = None if self.bias is None else wide(self.bias)
            return F.linear(wide(x), wide(self.weight), bias)


class LowRank(nn.Module):
    """Two linear maps through a narrow middle, `W_2 f(W_1 x) + b`: gates that cost few parameters.

    `activation` f is the identity by default. Decays need the maps float32 at least (`wide`); what gates an output has
    the precision of the output.
    """

    def __init__(
        self,
        d_in: int,
        rank: int,
        d_out: int,
        *,
        activation: Callable[[Tensor], Tensor] | None = None,
        bias: bool = True,
        wide: bool = True,
    ) -> None:
        super().__init__()
        kind = WideLinear if wide else Linear
        self.activation = activation
        self.down = kind(d_in, rank)
        self.up = kind(rank, d_out, bias=bias)

    def reset_parameters(self) -> None:
        """Each map as `Linear` sets it."""
        self.down.reset_parameters()
        self.up.reset_parameters()

    def forward(self, x: Shaped[Tensor, "... d_in"]) -> Shaped[Tensor, "... d_out"]:
        middle = self.down(x)
        return self.up(middle if self.activation is None else self.activation(middle))


class HeadLinear(nn.Module):
    """A linear map of each head's own: a block-diagonal matrix on (..., h, d_in). Weights (h, d_out, d_in)."""

    def __init__(self, heads: int, d_in: int, d_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads, d_out, d_in))

    def reset_parameters(self) -> None:
        """Weights uniform within +-d_in^-1/2."""
        bound = self.weight.shape[2] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: Shaped[Tensor, "*axes h d_in"]) -> Shaped[Tensor, "*axes h d_out"]:
        return torch.einsum("...hi,hoi->...ho", x, self.weight)

    def extra_repr(self) -> str:
        heads, d_out, d_in = self.weight.shape
        return f"{d_in}, {d_out}, heads={heads}"


class WideHeadLinear(HeadLinear):
    """The same with a bias (h * d_out), computed in float32 at least: for gates."""

    def __init__(self, heads: int, d_in: int, d_out: int) -> None:
        super().__init__(heads, d_in, d_out)
        self.bias = nn.Parameter(torch.empty(heads * d_out))

    def reset_parameters(self) -> None:
        """Weights as `HeadLinear` sets them, bias zero."""
        super().reset_parameters()
        nn.init.zeros_(self.bias)
        exempt(self.bias)

    def forward(self, x: Shaped[Tensor, "*axes h d_in"]) -> Shaped[Tensor, "*axes h d_out"]:
        with without_autocast(x):
            y = torch.einsum("...hi,hoi->...ho", wide(x), wide(self.weight))
            return y + wide(self.bias).unflatten(0, y.shape[-2:])


def reset_xavier(weight: Shaped[Tensor, "d_out d_in"], sizes: list[int], *, gain: float) -> None:
    """Set each block of `sizes` rows of a weight as a matrix of its own, by the rule of Glorot and Bengio 2010."""
    for block in weight.detach().split(sizes):
        nn.init.xavier_uniform_(block, gain=gain)


def reset_normal(weight: Shaped[Tensor, "..."], std: float) -> None:
    """Set a weight to normal numbers around zero."""
    # The meta device has no values to draw, and torch imports its compiler to find that out.
    if not weight.is_meta:
        nn.init.normal_(weight, std=std)


def reset_orthogonal(weight: Shaped[Tensor, "d_out d_in"], *, gain: float) -> None:
    """Set a weight to `gain` times a random matrix whose rows, or columns where these are fewer, are orthonormal.

    Saxe, McClelland and Ganguli 2014, arXiv 1312.6120.
    """
    # The meta device has no values to draw, and a factorization in half precision does not exist.
    if weight.is_meta:
        return
    shape = (max(weight.shape), min(weight.shape))
    q, r = torch.linalg.qr(torch.randn(shape, device=weight.device, dtype=wide_dtype(weight.dtype)))
    with torch.no_grad():
        # Without these signs the factorization favors some matrices over others.
        q = gain * q * r.diagonal().sign()
        weight.copy_(q if weight.shape[0] == len(q) else q.mT)


def shrink(weight: Shaped[Tensor, "..."], layers: float) -> None:
    """Divide a weight by the root of the number of layers whose products are summed in one stream.

    Radford et al. 2019 (GPT-2).
    """
    with torch.no_grad():
        weight /= layers**0.5
