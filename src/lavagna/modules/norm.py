"""Norms over the last axis, computed in float32 at least, plain and with the gates that papers put around them."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from lavagna.algebra.transition import identity
from lavagna.kernels import find_fused
from lavagna.modules.activation import ACTIVATIONS
from lavagna.modules.precision import wide
from lavagna.modules.weight_decay import exempt


def _inverse_root(mean: Tensor, eps: float) -> Tensor:
    """`1 / sqrt(mean + eps)`; without an eps 1 where the mean is 0: of zeros, as masked steps are, all stays finite."""
    return torch.rsqrt(mean + eps if eps else torch.where(mean > 0, mean, 1))


def _fused(x: Tensor) -> Callable[..., Tensor] | None:
    """The kernel that norms in one pass, where there is one for the device; a compiler fuses the passes by itself."""
    kernel = None if torch.compiler.is_compiling() else find_fused(x.device.type, "gated_norm")
    return None if kernel is None or not x.numel() or kernel.lacks(identity(), x, x, x) else kernel.run


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight` over the last axis; on (b, t, h, v) it is one norm a head.

    With `zero_centered` the factor is `1 + weight` (Gemma, Qwen3-Next). Zhang and Sennrich 2019, arXiv 1910.07467.
    """

    def __init__(self, width: int, *, eps: float = 1e-5, affine: bool = True, zero_centered: bool = False) -> None:
        super().__init__()
        self.eps, self.zero_centered = eps, zero_centered
        self.weight = nn.Parameter(torch.empty(width)) if affine else None

    def reset_parameters(self) -> None:
        """Factors one."""
        if self.weight is not None:
            nn.init.constant_(self.weight, 0 if self.zero_centered else 1)
            exempt(self.weight)

    def forward(self, x: Shaped[Tensor, "*axes width"]) -> Shaped[Tensor, "*axes width"]:
        fused = _fused(x)
        if fused is not None:
            return fused(x, None, self._factors(), eps=self.eps, width=x.shape[-1])
        return self._normalized(wide(x)).to(x.dtype)

    def _factors(self) -> Tensor | None:
        if self.weight is None:
            return None
        return 1 + wide(self.weight) if self.zero_centered else wide(self.weight)

    def _normalized(self, x: Tensor) -> Tensor:
        y = x * _inverse_root(x.square().mean(-1, keepdim=True), self.eps)
        factors = self._factors()
        return y if factors is None else y * factors

    def extra_repr(self) -> str:
        width = None if self.weight is None else self.weight.shape[0]
        return f"weight={width}, eps={self.eps}" + (", zero_centered=True" if self.zero_centered else "")


class HeadNorm(nn.Module):
    """Each head's LayerNorm, `(x - mean(x)) / sqrt(var(x) + eps) * weight + bias`, on (b, t, h, v).

    The same as a GroupNorm of h groups on the h * v channels of a step, with weight and bias (h * v). `zero_centered`:
    the weight is stored as its distance from 1, starts at 0, and is used as `1 + weight`.

    Ba, Kiros and Hinton 2016, arXiv 1607.06450; Wu and He 2018, arXiv 1803.08494 (RWKV's `ln_x`, xLSTM's head norms).
    """

    def __init__(
        self, heads: int, size: int, *, eps: float = 1e-5, bias: bool = True, zero_centered: bool = False
    ) -> None:
        super().__init__()
        self.heads, self.size, self.eps, self.zero_centered = heads, size, eps, zero_centered
        self.weight = nn.Parameter(torch.empty(heads * size))
        self.bias = nn.Parameter(torch.empty(heads * size)) if bias else None

    def reset_parameters(self) -> None:
        """Weights one, or zero where they are added to one; bias zero."""
        nn.init.constant_(self.weight, 0.0 if self.zero_centered else 1.0)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        exempt(self.weight, self.bias)

    def forward(
        self, x: Shaped[Tensor, "*axes h v"], unit: Shaped[Tensor, "*axes h 1"] | None = None
    ) -> Shaped[Tensor, "*axes h v"]:
        """The normed heads. With a `unit` it is the norm of `e^unit x`, which may be larger than any float."""
        y = wide(x)
        weight, bias = (None if part is None else part.to(y.dtype) for part in (self.weight, self.bias))
        assert weight is not None
        weight = 1 + weight if self.zero_centered else weight
        # Not 0, for which a step of zeros, as masked ones are, would be divided by it.
        least = torch.finfo(y.dtype).tiny
        if unit is None and self.heads == 1:
            return F.layer_norm(y, (self.size,), weight, bias, eps=max(self.eps, least)).to(x.dtype)
        if unit is None:
            y = F.layer_norm(y, (self.size,), eps=max(self.eps, least))
        else:
            y = y - y.mean(-1, keepdim=True)
            y = y * (y.square().mean(-1, keepdim=True) + (self.eps * (-2 * unit).exp()).clamp_min(least)).rsqrt()
        heads = (self.heads, self.size)
        weight = weight.unflatten(0, heads)
        y = y * weight if bias is None else torch.addcmul(bias.unflatten(0, heads), y, weight)
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.heads}, {self.size}, eps={self.eps}, bias={self.bias is not None}"


class LayerNorm(HeadNorm):
    """One norm over all channels, with a mean taken away: a `HeadNorm` of one head. Ba et al. 2016."""

    def __init__(self, width: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__(1, width, eps=eps, bias=bias)

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Shaped[Tensor, "*axes width"]
    ) -> Shaped[Tensor, "*axes width"]:
        return super().forward(x.unsqueeze(-2)).squeeze(-2)


# What may stand before the halves of a block and behind the last one, by name: builders (width, eps=).
NORMS: dict[str, Callable[..., nn.Module]] = {
    "rms": RMSNorm,
    "layer": LayerNorm,
    "zero_centered_rms": partial(RMSNorm, zero_centered=True),
}


class GatedRMSNorm(RMSNorm):
    """Norm first, gate after: `norm(x) * silu(gate)` (RetNet, GLA, Gated DeltaNet), or another of `ACTIVATIONS`.

    Without a gate it is the norm alone.
    """

    def __init__(self, width: int, *, eps: float = 1e-5, affine: bool = True, activation: str = "silu") -> None:
        super().__init__(width, eps=eps, affine=affine)
        self.activation = activation

    def forward(
        self, x: Shaped[Tensor, "*axes width"], gate: Shaped[Tensor, "*axes width"] | None = None
    ) -> Shaped[Tensor, "*axes width"]:
        if gate is None:
            return super().forward(x)
        fused = _fused(x) if self.activation == "silu" and gate.shape == x.shape else None
        if fused is not None:
            return fused(x, gate, self._factors(), eps=self.eps, width=x.shape[-1])
        return (self._normalized(wide(x)) * ACTIVATIONS[self.activation](wide(gate))).to(x.dtype)

    def channels(
        self, o: Float[Tensor, "b t h v"], gate: nn.Module | None, x: Float[Tensor, "b t d"]
    ) -> Float[Tensor, "b t c"]:
        """What heads have read, as channels: each head's norm, gated by a map of x where there is one."""
        return self(o, None if gate is None else gate(x).unflatten(-1, o.shape[2:])).flatten(2)


class GroupedRMSNorm(nn.Module):
    """Gate first, norm after, over each of `groups` equal spans of the last axis: `norm(x * silu(gate))` (Mamba-2).

    With `norm_before_gate` it is the norm that comes first, over the same spans: `norm(x) * silu(gate)`.

    Dao and Gu 2024, arXiv 2405.21060 (`RMSNormGated`).
    """

    def __init__(self, width: int, *, groups: int = 1, norm_before_gate: bool = False, eps: float = 1e-5) -> None:
        super().__init__()
        assert width % groups == 0
        self.groups, self.norm_before_gate, self.eps = groups, norm_before_gate, eps
        self.weight = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        """Weights one."""
        nn.init.ones_(self.weight)
        exempt(self.weight)

    def forward(
        self, x: Shaped[Tensor, "*axes width"], gate: Shaped[Tensor, "*axes width"]
    ) -> Shaped[Tensor, "*axes width"]:
        fused = _fused(x) if gate.shape == x.shape else None
        if fused is not None:
            width, before = x.shape[-1] // self.groups, not self.norm_before_gate
            return fused(x, gate, wide(self.weight), eps=self.eps, width=width, before=before)
        y, gate = wide(x), F.silu(wide(gate))
        if self.norm_before_gate:
            return (self._normalized(y) * gate).to(x.dtype)
        return self._normalized(y * gate).to(x.dtype)

    def _normalized(self, x: Tensor) -> Tensor:
        spans = x.unflatten(-1, (self.groups, -1))
        spans = spans * _inverse_root(spans.square().mean(-1, keepdim=True), self.eps)
        return spans.flatten(-2) * self.weight

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, groups={self.groups}, eps={self.eps}"


def unit(x: Shaped[Tensor, "*axes k"], *, eps: float = 1e-6) -> Shaped[Tensor, "*axes k"]:
    """Vectors of length one, `x / sqrt(sum(x^2) + eps)`; a zero vector stays zero, with a finite gradient."""
    y = wide(x)
    return (y * torch.rsqrt(y.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


def shares(x: Shaped[Tensor, "*axes k"], *, eps: float = 1e-6) -> Shaped[Tensor, "*axes k"]:
    """Vectors whose absolute values add up to one, `x / max(sum |x|, eps)`; a zero vector stays zero."""
    y = wide(x)
    return (y / y.abs().sum(-1, keepdim=True).clamp_min(eps)).to(x.dtype)
