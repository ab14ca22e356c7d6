"""Layers that the tests try: every name as it is built by default, and the options that change what is computed."""

import torch

from lavagna import layers

D = 32
VARIANTS = {name: (name, {}) for name in layers.names()} | {
    "linear_attention normalized": ("linear_attention", {"normalize": True, "heads": 4}),
    "linear_attention identity": ("linear_attention", {"feature_map": "identity", "head_dim": 8}),
    "retention paper": ("retention", {"decay": "paper", "heads": 4}),
    "retention published": (
        "retention",
        {"kv_heads": 1, "rescale": "paper", "rotation": "halves", "affine": True, "norm_eps": 1e-3},
    ),
    "gla convolved": ("gla", {"conv_size": 4, "heads": 2, "kv_heads": 1, "gate": False, "lower_bound": -0.05}),
    "delta_net gated": ("delta_net", {"gate": True, "heads": 2, "max_beta": 2.0}),
    "gated_delta_net grouped": ("gated_delta_net", {"heads": 2, "value_heads": 4, "max_beta": 2.0, "conv_bias": True}),
    "gated_delta_net unconvolved": ("gated_delta_net", {"conv_size": 0, "gate": False}),
    "kda grouped": ("kda", {"heads": 2, "value_heads": 4, "max_beta": 2.0, "gate_rank": 3, "lower_bound": -5.0}),
    "delta_product faded": ("delta_product", {"factors": 3, "fading": True, "heads": 2, "value_heads": 4}),
    "fast_weight normalized": ("fast_weight", {"feature_map": "elu_plus_one", "normalize": True, "heads": 4}),
    "rwkv4 wide": ("rwkv4", {"expand": 1.5, "layer_index": 1, "depth": 2}),
    "rwkv5 first": ("rwkv5", {"version": "5.0", "heads": 4}),
    "rwkv5 gated": ("rwkv5", {"version": "5.1", "head_dim": 8, "layer_index": 1, "depth": 3}),
    "rwkv6 started": ("rwkv6", {"heads": 4, "mix_rank": 2, "decay_rank": 3, "learned_state": True}),
    "rwkv7 ranked": ("rwkv7", {"heads": 4, "decay_rank": 3, "rate_rank": 5, "gate_rank": 2, "out_bias": True}),
    "mamba narrow": ("mamba", {"d_state": 3, "dt_rank": 1, "conv_size": 2, "expand": 0.5}),
    "mamba normed": ("mamba", {"norm": True, "bias": True, "conv_bias": False, "d_state": 4}),
    "mamba2 biased": ("mamba2", {"heads": 4, "bias": True, "conv_bias": False, "d_state": 4}),
    "mamba2 grouped": ("mamba2", {"heads": 4, "groups": 2, "d_state": 5, "dt_limit": (0.01, 0.05)}),
    "s5 blocks": ("s5", {"d_state": 12, "blocks": 3, "readout": "normal", "step_rescale": 2.0}),
    "hyena deep": ("hyena", {"order": 3, "max_length": 100, "bands": 2, "filter_width": 8}),
    "lstm wide": ("lstm", {"expand": 1.5}),
    "lssl fixed": ("lssl", {"d_state": 5, "init": "random", "fixed": True, "channels": 2, "discretization": "zoh"}),
    "s4 free": ("s4", {"d_state": 8, "tied": False, "init": "lagt"}),
    "dss short": ("dss", {"max_length": 5, "d_state": 8}),
    "dss exp": ("dss", {"method": "exp", "d_state": 8}),
    "h3 outer": ("h3", {"heads": 8, "d_state": 4, "conv_size": 3, "init": "legs"}),
    "s4d real": ("s4d", {"init": "real", "d_state": 3}),
    "s4d bilinear": ("s4d", {"discretization": "bilinear", "d_state": 8, "init": "lin"}),
    "mamba2 per channel": ("mamba2", {"head_dim": 16, "groups": 2, "D_per_channel": True, "norm_before_gate": True}),
    "mamba3 ranked": ("mamba3", {"heads": 4, "groups": 2, "d_state": 4, "rank": 2, "norm": True, "rope_fraction": 1.0}),
    "rg_lru wide": ("rg_lru", {"heads": 3, "expand": 1.5, "conv_size": 2}),
    "mlstm paper": ("mlstm", {"block": "paper", "heads": 4}),
    "mlstm uncapped": ("mlstm", {"heads": 2, "expand": 1.5, "gate_cap": 0, "normalizer_eps": 1e-3}),
    "slstm heads": ("slstm", {"heads": 4, "conv_size": 0, "layer_index": 1, "depth": 3}),
    "softmax_attention heads": ("softmax_attention", {"heads": 2}),
    "softmax_attention grouped": (
        "softmax_attention",
        {
            "heads": 4,
            "kv_heads": 2,
            "rotary_fraction": 0.5,
            "qk_norm": "zero_centered_head",
            "gate": True,
            "bias": True,
        },
    ),
    "softmax_attention windowed": (
        "softmax_attention",
        {"heads": 4, "kv_heads": 1, "window": 4, "rotary_fraction": 0, "qk_norm": "width", "out_bias": True},
    ),
}


# What serves a call on a CPU: torch alone, or kernels where there are any.
BACKENDS = ("torch", "auto")

# Those that are not how an architecture is built by default: each generic test runs over a third of them.
OPTIONAL = [variant for variant in VARIANTS if variant not in layers.names()]

# Those whose state has an axis that is empty before the first token, and then as long as the text.
GROWING = [
    name
    for name in layers.names()
    if any(0 in x.shape for x in layers.build(name, D).initial_state(1).tensors().values())
]


def build(variant: str, device: torch.device, dtype: torch.dtype = torch.float64) -> layers.Layer:
    """A layer of width D whose every parameter, biases too, is off its initial value: no zero hides anything."""
    name, options = VARIANTS[variant]
    return made(name, device, dtype, **options)


def made(name: str, device: torch.device, dtype: torch.dtype = torch.float64, **options) -> layers.Layer:
    """The same of a layer with options that are in no variant."""
    layer = layers.build(name, D, **options).to(device, dtype)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return layer


def forms_of(variant: str) -> tuple[str, ...]:
    """Every form that a layer can be asked for."""
    return (*layers.layer_class(VARIANTS[variant][0]).forms, "auto")


def ways_of(layer: layers.Layer) -> list[tuple[str, str]]:
    """Every form and backend that a layer can be asked for: its forms, by torch and by the kernels."""
    found = [(form, "torch") for form in (*layer.forms, "auto")]
    for form in ("recurrent", "auto"):
        try:
            layer(text(layer._weight.device, 1, 1, layer.dtype), form=form, backend="cpu")
        except ValueError:
            continue
        found.append((form, "cpu"))
    return found


def text(device: torch.device, b: int, t: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A random sequence (b, t, D)."""
    return torch.randn(b, t, D, device=device, dtype=dtype)


def distance(x: torch.Tensor, y: torch.Tensor) -> float:
    """Largest absolute difference over largest absolute value of the second, 0 for two empty tensors."""
    assert x.shape == y.shape
    if not y.numel():
        return 0.0
    return ((x - y).abs().max() / y.abs().max().clamp_min(1e-30)).item()


def far(state, other) -> float:
    """The largest distance between tensors of the same name in two states."""
    tensors, others = state.tensors(), other.tensors()
    assert tensors.keys() == others.keys()
    return max(distance(tensors[name].double(), others[name].double()) for name in tensors)


def convolved(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | float = 0.0) -> torch.Tensor:
    """A causal convolution over (t, c), filters (c, width), written out tap by tap."""
    width = weight.shape[1]
    y = torch.zeros_like(x) + bias
    for t in range(len(x)):
        for i in range(width):
            if t - i >= 0:
                y[t] = y[t] + weight[:, width - 1 - i] * x[t - i]
    return y


def turned(x: torch.Tensor, position: int, exponents: list[float]) -> torch.Tensor:
    """Vectors (..., k) as k / 2 complex numbers, neighbors a pair, each turned by position * 10000^-exponent."""
    angles = torch.tensor([position * 10000.0**-exponent for exponent in exponents], dtype=torch.float64)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles).to(x.device)).flatten(-2)


def rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """`x` over the root of its mean square, along the last axis."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
