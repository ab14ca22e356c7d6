"""Hyena: gates between long convolutions, whose filters are a function of the lag instead of one weight a lag."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lavagna.autocast import without_autocast
from lavagna.forms.convolution import convolution, convolve
from lavagna.layers.layer import Layer
from lavagna.modules.attention import append
from lavagna.modules.linear import Linear, OutLinear, WideLinear
from lavagna.modules.options import number, whole
from lavagna.modules.precision import Wide, roomy, wide
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State

# What is left of a channel's filter after `max_length` times its reach, from the longest reach to the shortest.
LEFT, REACHES = 0.01, (1.5, 0.3)
# Lags are computed by as many at least.
BLOCK = 64


class FilterLinear(Wide, WideLinear):
    """A linear map whose weights are float32 at least: of rounded ones sines of sines make another filter."""


class ImplicitFilter(Wide):
    """One filter a channel, as a function of the lag: a network of sines under a window that fades.

        h(l) = exp(-rate t) W_3 sin(w sin-layers(features(l))),          t = l / (max_length - 1)

    The features of a lag are t and the cosines and sines of `bands` frequencies; a layer is `sin(w * (W x + b))` with
    learned frequencies w. Rates are fixed, and run from channel to channel so that 1 % is left after 1.5 to 0.3 times
    `max_length`. The sines are computed in float64: each layer multiplies the rounding of the one before by w.
    """

    def __init__(
        self, filters: int, channels: int, *, max_length: int, bands: int, width: int, frequency: float
    ) -> None:
        super().__init__()
        self.filters, self.channels = filters, channels
        self.max_length, self.bands, self.frequency = max_length, bands, frequency
        sizes = [1 + 2 * bands, width, width, width]
        self.sines = nn.ModuleList(FilterLinear(a, b, bias=True) for a, b in zip(sizes, sizes[1:], strict=False))
        self.frequencies = nn.Parameter(torch.empty(width))
        self.read = FilterLinear(width, filters * channels)

    def reset_parameters(self) -> None:
        """Weights and biases uniform within +-d_in^-1/2, every frequency the given one; none decays, as published."""
        for layer in (*self.sines, self.read):
            assert isinstance(layer, Linear)
            layer.reset_parameters()
            if layer.bias is not None:
                bound = layer.weight.shape[1] ** -0.5
                nn.init.uniform_(layer.bias, -bound, bound)
        nn.init.constant_(self.frequencies, self.frequency)
        exempt(*self.parameters())

    def forward(self, lags: int) -> Float[Tensor, "f d l"]:
        """The filters at the lags 0, 1, ..., float32 at least; each depends on its lag alone."""
        # Products of few rows are rounded in another way than those of many: the same lag shall have the same number.
        whole_blocks = -(-lags // BLOCK) * BLOCK
        lag = torch.arange(whole_blocks, device=self.frequencies.device, dtype=torch.float64)
        hidden = self._features(lag)
        for layer in self.sines:
            assert isinstance(layer, Linear) and layer.bias is not None
            hidden = F.linear(hidden, layer.weight.double(), layer.bias.double())
            hidden = torch.sin(self.frequencies.double() * hidden)
        h = self.read(hidden.to(wide(self.read.weight).dtype)).unflatten(-1, (self.filters, self.channels))
        return (h * self._window(lag).to(h.dtype)[:, None, :]).permute(1, 2, 0)[..., :lags]

    def _features(self, lag: Float[Tensor, " l"]) -> Float[Tensor, "l n"]:
        # The lowest band is nearly constant, as published.
        bands = torch.linspace(1e-4, self.bands - 1, self.bands, dtype=lag.dtype, device=lag.device)
        angle = 2 * math.pi / self.max_length * lag[:, None] * bands
        return torch.cat([self._time(lag)[:, None], angle.cos(), -angle.sin()], 1)

    def _window(self, lag: Float[Tensor, " l"]) -> Float[Tensor, "l d"]:
        slow, fast = (-math.log(LEFT) / reach for reach in REACHES)
        rates = torch.linspace(slow, fast, self.channels, dtype=lag.dtype, device=lag.device)
        return torch.exp(-self._time(lag)[:, None] * rates)

    def _time(self, lag: Tensor) -> Tensor:
        return lag / max(self.max_length - 1, 1)


class Hyena(Layer):
    """Products with gates and long causal convolutions in turn, N of the former and N - 1 of the latter.

        x^1, ..., x^N, v = short convolution of W u          v <- h^i * (x^i v) + bias^i (x^i v)   for i = N, ..., 2
        y = W_out (x^1 v)

    The filters h^i are a network's values at the lags (`ImplicitFilter`), so their length costs no parameters. They
    are drawn over `max_length` steps once and for all: the filter at a lag is the same whatever the call's length, and
    a text of more than `max_length` tokens in all, state included, raises ValueError.

    It is no recurrence with a fixed-size memory: its state keeps what each long filter has to read, every x^i v so far,
    and grows with the text; a token costs time and memory in proportion to the text before it. Forms: "convolution"
    (transforms; for few steps direct products, which are exactly causal), "parallel" (direct products, O(t^2)) and
    "recurrent" (one step after the other); any cut of a text is exact.

    - order: N, 2 or more; conv_size: taps of the short convolution, 3.
    - max_length: how many tokens a text may have, 2048.
    - bands, filter_width, frequency: of the filters' network, 16, 64 and 1; the paper's language models have 14.

    State: `inputs` (b, longest text, N - 1, d), zeros behind each row's last token; `window` (b, conv_size - 1,
    (N + 1) d). The bias is standard normal. Poli et al. 2023, arXiv 2302.10866; `HyenaOperator` of safari.
    """

    name = "hyena"
    forms = ("recurrent", "parallel", "convolution")

    def __init__(
        self,
        d_model: int,
        *,
        order: int = 2,
        conv_size: int = 3,
        max_length: int = 2048,
        bands: int = 16,
        filter_width: int = 64,
        frequency: float = 1.0,
    ) -> None:
        super().__init__(d_model)
        sizes = {"conv_size": conv_size, "max_length": max_length, "bands": bands, "filter_width": filter_width}
        for option, given in sizes.items():
            whole(self.name, option, given)
        number(self.name, "frequency", frequency)
        if not isinstance(order, int) or order < 2:
            raise ValueError(f"{self.name}: order must be an int >= 2, but came as {order!r}.")
        self.order, self.max_length = order, max_length
        self.inputs = Linear(d_model, (order + 1) * d_model, bias=True)
        self.conv = ShortConv((order + 1) * d_model, conv_size, bias=True)
        self.filter = ImplicitFilter(
            order - 1, d_model, max_length=max_length, bands=bands, width=filter_width, frequency=frequency
        )
        self.bias = nn.Parameter(torch.empty(order - 1, d_model))
        self.out = OutLinear(d_model, d_model, bias=True)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if not self.bias.is_meta:
            nn.init.normal_(self.bias)
        exempt(self.bias)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        inputs = torch.zeros(batch, 0, self.order - 1, self.d_model, device=device, dtype=dtype)
        # Products of three projections, which may lie beyond float16.
        inputs = roomy(inputs)
        return {"inputs": inputs, "window": self.conv.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        steps.need_torch(self.name)
        seen, rows, cached = state.tokens_seen, steps.rows, state.inputs.shape[1]
        total = seen + steps.counts if cached or rows is not None else None
        self._check_length(cached, steps, total)
        mixed, window = self.conv(self.inputs(x), state.window, steps)
        method = "one by one" if not steps.convolves(self.name) else "auto"
        method = "direct" if steps.form == "parallel" else method
        with without_autocast(x):

            def run(mixed: Tensor, counts: Tensor, past: Tensor, seen: Tensor) -> tuple[Tensor]:
                return (self._run(mixed, past, seen, method),)

            (both,) = steps.by_rows(run, mixed, state.inputs, seen)
        y, new = both[:, :, 0], both[:, :, 1:]
        inputs = append(state.inputs, new if rows is None else rows.gather(new), seen, total)
        return self.out(y, mixed.dtype), {"inputs": inputs, "window": window}

    def _run(
        self, mixed: Float[Tensor, "n l c"], past: Float[Tensor, "n s f d"], seen: Int[Tensor, " n"], method: str
    ) -> Float[Tensor, "n l g d"]:
        """The gated output of each row without holes, and behind it what each filter read."""
        *gates, v = mixed.unflatten(-1, (self.order + 1, self.d_model)).unbind(2)
        kernels = self.filter(min(past.shape[1] + mixed.shape[1], self.max_length))
        before = _right_aligned(past, seen)
        read, kept = [], roomy(mixed).dtype
        for i, gate in enumerate(reversed(gates[1:])):
            # What is kept is what is read: a state in bfloat16 holds just the numbers of this call.
            read.append((gate * v).to(kept))
            z = wide(read[-1])
            v = _filtered(z, kernels[i], wide(before[:, :, i]), method) + wide(self.bias[i]) * z
        return torch.stack([(gates[0] * v).to(kept), *read], 2)

    def _check_length(self, cached: int, steps: Steps, total: Tensor | None) -> None:
        """Raises ValueError where a row has more tokens than the filters have lags."""
        most = cached + steps.length
        if most > self.max_length and total is not None and not total.is_meta:
            most = int(total.max()) if len(total) else 0
        if most > self.max_length:
            raise ValueError(
                f"{self.name}: a text comes to {most} tokens, but the filters were made for max_length = "
                f"{self.max_length}. Build the layer with a larger max_length."
            )


def _right_aligned(past: Float[Tensor, "n s f d"], seen: Int[Tensor, " n"]) -> Float[Tensor, "n s f d"]:
    """Each row's `seen` entries at the end of the axis instead of its start, zeros before them."""
    source = torch.arange(past.shape[1], device=past.device) - (past.shape[1] - seen[:, None])
    real = (source >= 0)[:, :, None, None]
    return past.gather(1, source.clamp_min(0)[:, :, None, None].expand_as(past)) * real


def _filtered(
    z: Float[Tensor, "n l d"], kernel: Float[Tensor, "d taps"], before: Float[Tensor, "n s d"], method: str
) -> Float[Tensor, "n l d"]:
    """Each channel's causal convolution with its filter; what lies before the first step is given."""
    z, before, taps = z.transpose(1, 2), before.transpose(1, 2), kernel.shape[-1]
    if not taps:
        return z.transpose(1, 2)
    tail = F.pad(before, (taps - 1 - before.shape[-1], 0))
    if method == "one by one":
        y = _one_by_one(torch.cat([tail, z], -1), kernel, z.shape[-1])
    elif before.shape[-1]:
        y = convolution(z, kernel, tail, method=method).output
    else:
        y = convolve(z, kernel, method=method)
    return y.transpose(1, 2)


def _one_by_one(inputs: Float[Tensor, "n d m"], kernel: Float[Tensor, "d taps"], steps: int) -> Float[Tensor, "n d l"]:
    """The definition: at every step the last inputs, weighted."""
    weights = kernel.flip(-1)
    reads = [inputs[..., :0]]
    for j in range(steps):
        reads.append((inputs[..., j : j + weights.shape[-1]] * weights).sum(-1, keepdim=True))
    return torch.cat(reads, -1)
