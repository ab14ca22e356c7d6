"""mLSTM: a matrix memory that fades and writes by exponential gates, read as an average of what was written."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import scalar
from lavagna.layers.layer import Layer
from lavagna.modules.exponential import exponential_gates
from lavagna.modules.heads import Heads, expanded, heads_of
from lavagna.modules.linear import HeadLinear, Linear, WideLinear, reset_normal
from lavagna.modules.norm import HeadNorm
from lavagna.modules.options import choice, number, whole
from lavagna.modules.precision import Wide, wide, wide_dtype
from lavagna.modules.projection import QKV
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State


class Sizes(NamedTuple):
    """What differs between the two published blocks, where nothing else is asked for."""

    expand: float
    expand_k: float
    gate_cap: float
    norm_eps: float


BLOCKS = {"7b": Sizes(1, 0.5, 15, 1e-6), "paper": Sizes(2, 2, 0, 1e-5)}


class MLSTM(Layer):
    """A memory of values under keys whose gates are exponentials: one token may outweigh all that came before it.

        S_t = f_t S_{t-1} + i_t v_t k_t^T          n_t = f_t n_{t-1} + i_t k_t
        h_t = S_t q_t / max(|n_t^T q_t|, 1)          (q_t over sqrt(head_dim))
        log i_t = cap(W_i x_t + b_i)          f_t = sigmoid(cap(W_f x_t + b_f))

    The normalizer n is one more value row of the memory. All of it is kept over e^m, the stabilizer, and the floor 1
    with it: `h = num / max(|n^T q|, e^-m)`. In every form m_t = max(m_{t-1} + log f_t, log i_t, 0): one convention, in
    which e^-m is at most 1 and gradients are finite for all gates. Any m gives this h: `modules.exponential`.

    - block: "7b", that of xLSTM-7B: q, k, v and gates straight from x, keys half as wide as values; each head's h is
      normed and gated by sigmoid(W_o x); RMSNorms around it, a SwiGLU behind it. "paper", that of the small models of
      2024: x is raised to two copies of twice its width; one is convolved and passed through SiLU to make q and k, and
      makes v as it is, all by block-diagonal matrices; the gates see q, k and v; a multiple of the convolved copy is
      added to the normed h, and the other copy gates it by SiLU. A LayerNorm before it; it is the whole block.
    - heads, head_dim: of the keys; the largest size up to 64 that divides their width by default.
    - expand, expand_k: width of values and keys over d_model: 1 and 1/2 in "7b"; 2 in "paper", where they are one.
    - gate_cap: gates become `cap tanh(gate / cap)`; 15 in "7b", 0 (none) in "paper".
    - normalizer_eps: added to the denominator over e^m. Published as 1e-6, which is 1e-6 e^m in plain terms: nothing at
      a small m, all at a large one. The norm behind h takes any factor out again, so it is 0 by default and h exact.
      Above 0 h depends on m, which is computed without gradient: gradients are those of h with m held where it is.
      What the slope of m would add changes a head's h by a factor alone, so the norm takes its gradient out as well,
      but for norm_eps; and it jumps from one gate to another where the largest changes.
    - conv_size, projection_block: in "paper", tokens of the convolution and width of a block of the block-diagonal
      matrices, 4 and 4.
    - depth: how many layers the model has; the output weights start smaller by it.

    State: `memory` (b, h, v + 1, k), the normalizer below the values; `stabilizer` (b, h, 1); in "paper" `window`
    (b, conv_size - 1, expand * d_model). Gate weights start at 0, the biases of f at 3 to 6 over the heads, those of i
    at -10 in "7b" and normal with deviation 0.1 in "paper"; all other matrices are normal, as published.

    Beck et al. 2024, arXiv 2405.04517 (`mLSTMLayer` of xlstm); Beck et al. 2025, arXiv 2503.13427 (xLSTM-7B).
    """

    name = "mlstm"

    def __init__(
        self,
        d_model: int,
        *,
        block: str = "7b",
        heads: int | None = None,
        head_dim: int | None = None,
        expand: float | None = None,
        expand_k: float | None = None,
        gate_cap: float | None = None,
        conv_size: int | None = None,
        projection_block: int | None = None,
        norm_eps: float | None = None,
        normalizer_eps: float = 0.0,
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        choice(self.name, "block", block, BLOCKS)
        usual = BLOCKS[block]
        gate_cap = usual.gate_cap if gate_cap is None else gate_cap
        norm_eps = usual.norm_eps if norm_eps is None else norm_eps
        for option, given in {"norm_eps": norm_eps, "normalizer_eps": normalizer_eps, "gate_cap": gate_cap}.items():
            number(self.name, option, given, zero=True)
        self.depth = 1 if depth is None else depth
        whole(self.name, "depth", self.depth)
        self.block, self.gate_cap, self.normalizer_eps = block, gate_cap, normalizer_eps
        self.keys, self.values = _heads(self.name, d_model, block, heads, head_dim, expand, expand_k)
        if block == "7b":
            self._only_in_paper(conv_size=conv_size, projection_block=projection_block)
            self.front = Straight(self.name, d_model, self.keys, self.values)
        else:
            sizes = (4 if given is None else given for given in (conv_size, projection_block))
            self.front = Raised(self.name, d_model, self.values, *sizes)
            self.block_norm, self.block_mlp = "layer", None
        self.input_gate, self.forget_gate = (WideLinear(self.front.seen, self.keys.count, bias=True) for _ in range(2))
        # As the files have their weights: around one, or around zero with the one added.
        self.norm = HeadNorm(*self.values, eps=norm_eps, bias=False, zero_centered=block == "paper")
        self.out = Linear(self.values.width, d_model)
        self.reset_parameters()

    def _only_in_paper(self, **given: int | None) -> None:
        for option, value in given.items():
            if value is not None:
                raise ValueError(f"{self.name}: {option}={value!r} is an option of block='paper' alone. Leave it out.")

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_normal(self.out.weight, 2 / self.depth / self.d_model**0.5)
        gates = (self.input_gate, self.forget_gate)
        biases = [gate.bias for gate in gates if gate.bias is not None]
        with torch.no_grad():
            for gate in gates:
                gate.weight.zero_()
            biases[1].copy_(torch.linspace(3, 6, self.keys.count, device=self.out.weight.device))
        if self.block == "7b":
            nn.init.constant_(biases[0], -10.0)
        else:
            reset_normal(biases[0], 0.1)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        heads, size = self.values
        shapes = {"memory": (batch, heads, size + 1, self.keys.size), "stabilizer": (batch, heads, 1)}
        tensors = {name: torch.zeros(shape, device=device, dtype=wide_dtype(dtype)) for name, shape in shapes.items()}
        return tensors | self.front.initial_tensors(batch, device, dtype)

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v, seen, beside, tensors = self.front(x, state, steps)
        log_input = capped(self.input_gate(seen), self.gate_cap)
        log_forget = F.logsigmoid(capped(self.forget_gate(seen), self.gate_cap))
        h, memory = self.cell(q, k, v, log_input, log_forget, state, steps)
        return self.out(self.front.close(self.norm(h), beside).flatten(2)), tensors | memory

    def cell(
        self,
        q: Float[Tensor, "b t h k"],
        k: Float[Tensor, "b t h k"],
        v: Float[Tensor, "b t h v"],
        log_input: Float[Tensor, "b t h"],
        log_forget: Float[Tensor, "b t h"],
        state: State,
        steps: Steps,
    ) -> tuple[Float[Tensor, "b t h v"], dict[str, Tensor]]:
        """What each head reads, float32 at least, and the new memory and stabilizer."""
        gates = exponential_gates(log_forget[..., None], log_input[..., None], state.stabilizer, steps, least=0.0)
        # float32 for the quotient: of two sums rounded to bfloat16 it would lose what the memory kept.
        q, k, v = wide(q) * q.shape[-1] ** -0.5, wide(k), wide(v)
        written = torch.cat([v, torch.ones_like(v[..., :1])], -1) * gates.write.to(v.dtype)
        read, memory = steps.recur(scalar(gates.log_decay), q, k, written, state.memory)
        floor = (-gates.after).exp()
        h = read[..., :-1] / (torch.maximum(read[..., -1:].abs(), floor) + self.normalizer_eps)
        return h, {"memory": memory, "stabilizer": gates.last}


class Front(NamedTuple):
    """What stands before the cell: q, k, v, what the gates see, what is kept beside for the end, the new state."""

    q: Tensor
    k: Tensor
    v: Tensor
    seen: Tensor
    beside: tuple[Tensor, ...]
    tensors: dict[str, Tensor]


class Straight(nn.Module):
    """The projections of the 7B block: everything from x at once, and an output gate."""

    def __init__(self, call: str, d_model: int, keys: Heads, values: Heads) -> None:
        super().__init__()
        self.seen, self.values = d_model, values
        self.qkv = QKV(call, d_model, keys, values)
        self.gate = Linear(d_model, values.width)

    def reset_parameters(self) -> None:
        """Normal weights with variance 2/5 over d_model."""
        for weight in (self.qkv.linear.weight, self.gate.weight):
            reset_normal(weight, (0.4 / self.seen) ** 0.5)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """None: each step stands alone."""
        return {}

    def forward(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> Front:
        q, k, v, tensors = self.qkv(x, state, steps)
        return Front(q, k, v, x, (self.gate(x).unflatten(-1, self.values),), tensors)

    def close(self, h: Float[Tensor, "b t h v"], beside: tuple[Tensor, ...]) -> Float[Tensor, "b t h v"]:
        """The normed read, gated, in the dtype of the activations."""
        (gate,) = beside
        return (h * wide(gate).sigmoid()).to(gate.dtype)


class Raised(Wide):
    """The projections of the small models' block: two wide copies of x, one of them convolved, a skip and a gate."""

    def __init__(self, call: str, d_model: int, values: Heads, conv_size: int, block: int) -> None:
        super().__init__()
        inner = values.width
        whole(call, "conv_size", conv_size)
        whole(call, "projection_block", block)
        if inner % block:
            raise ValueError(f"{call}: projection_block={block} does not divide expand * d_model = {inner}. Use 1.")
        self.d_model, self.values, self.blocks, self.seen = d_model, values, Heads(inner // block, block), 3 * inner
        self.up = Linear(d_model, 2 * inner)
        self.conv = ShortConv(inner, conv_size, bias=True, activation="silu")
        self.q, self.k, self.v = (HeadLinear(inner // block, block, block) for _ in range(3))
        self.skip = nn.Parameter(torch.empty(inner))

    def reset_parameters(self) -> None:
        """Normal weights with variance 2/5 over d_model, of the block-diagonal matrices too; skip one."""
        self.conv.reset_parameters()
        for part in (self.up, self.q, self.k, self.v):
            reset_normal(part.weight, (0.4 / self.d_model) ** 0.5)
        nn.init.ones_(self.skip)
        exempt(self.skip)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The empty window of the convolution."""
        return {"window": self.conv.initial_window(batch, device, dtype)}

    def forward(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> Front:
        raised, gate = self.up(x).chunk(2, -1)
        convolved, window = self.conv(raised, state.window, steps)
        sources = (self.q, convolved), (self.k, convolved), (self.v, raised)
        qkv = [part(source.unflatten(-1, self.blocks)).flatten(-2) for part, source in sources]
        q, k, v = (one.unflatten(-1, self.values) for one in qkv)
        return Front(q, k, v, torch.cat(qkv, -1), (convolved, gate), {"window": window})

    def close(self, h: Float[Tensor, "b t h v"], beside: tuple[Tensor, ...]) -> Float[Tensor, "b t h v"]:
        """The normed read and the skip, gated, in the dtype of the activations."""
        convolved, gate = (wide(one).unflatten(-1, self.values) for one in beside)
        skip = wide(self.skip).unflatten(0, self.values)
        return ((h + skip * convolved) * F.silu(gate)).to(beside[1].dtype)


def capped(x: Float[Tensor, "*axes"], cap: float) -> Float[Tensor, "*axes"]:
    """`cap tanh(x / cap)`, between -cap and cap and the same as x near 0; x itself for cap 0."""
    return cap * torch.tanh(x / cap) if cap else x


def _heads(
    call: str,
    d_model: int,
    block: str,
    heads: int | None,
    head_dim: int | None,
    expand: float | None,
    expand_k: float | None,
) -> tuple[Heads, Heads]:
    """Heads of keys and of values; raises ValueError where they cannot be."""
    expand = BLOCKS[block].expand if expand is None else expand
    usual = expand if block == "paper" else BLOCKS[block].expand_k
    expand_k = usual if expand_k is None else expand_k
    number(call, "expand", expand)
    width = expanded(call, "d_model", d_model, expand_k, option="expand_k")
    if block == "paper" and expand != expand_k:
        raise ValueError(f"{call}: expand_k={expand_k} differs from expand = {expand}, which block='paper' can't have.")
    keys = heads_of(call, width, heads, head_dim, what="expand_k * d_model")
    # Rounded because the quotient of two widths that are whole may miss the whole number by its last digit.
    size = expanded(call, "head_dim", keys.size, round(expand / expand_k, 9), option="expand / expand_k")
    return keys, Heads(keys.count, size)
