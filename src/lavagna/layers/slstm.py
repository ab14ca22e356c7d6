"""sLSTM: the LSTM with exponential gates, an average for what is shown, and heads that mix their own cells."""

from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from lavagna.autocast import without_autocast
from lavagna.derivatives import apart, beyond_backward, gradients_again
from lavagna.layers.layer import Layer
from lavagna.modules.exponential import NOTHING
from lavagna.modules.heads import heads_of
from lavagna.modules.linear import HeadLinear, reset_normal
from lavagna.modules.norm import HeadNorm
from lavagna.modules.options import number, whole
from lavagna.modules.precision import wide, wide_dtype
from lavagna.modules.short_conv import ShortConv
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State


class SLSTM(Layer):
    """Cells that keep an average of what came, weighted by exponential gates; the gates look at what was shown before.

        i_t, f_t, z_t, o_t = W u_t + R h_{t-1} + b          (u: x for z and o, silu(conv(x)) for i and f)
        c_t = sigmoid(f_t) c_{t-1} + e^{i_t} tanh(z_t)          n_t = sigmoid(f_t) n_{t-1} + e^{i_t}
        h_t = sigmoid(o_t) c_t / n_t          y_t = norm(h_t), each head's by itself

    Every matrix is block-diagonal, a block a head: R mixes the cells of a head with each other. c and n are kept over
    e^m with m_t = max(m_{t-1} + log sigmoid(f_t), i_t), so that n is at least 1; any m shows the same h.

    What is shown enters the gates, so a step is no affine map of the state and steps don't compose: the only form is
    "recurrent", and the layer keeps a loop of its own. All that needs no h is computed before it, for all steps at
    once; the loop, in float32 at least, is a kernel where there is one. Else it is 13 calls a step, and so is its
    backward pass, written by hand; under `torch.compile` and for gradients of gradients it is then unrolled step by
    step. O(t d (d / heads)) time.

    - heads, head_dim: the largest size up to 64 that divides d_model by default; together they are d_model.
    - conv_size: tokens of the convolution before i and f, 4; 0 for none.
    - layer_index, depth: forget biases start at 5 - 12 (j / (head_dim - 1))^(0.3 + 1.3 layer_index / (depth - 1)).

    State: `hidden`, `cell`, `normalizer`, `stabilizer` (b, h, head_dim), and `window` where there is a convolution. R
    and the other biases start at 0, the matrices W normal with variance 2/5 over d_model. There is no output matrix:
    the block's feed-forward net, a gated GELU 4/3 as wide as the model, follows.

    Beck et al. 2024, arXiv 2405.04517. `sLSTMLayer` of xlstm feeds the cell's i by the matrix that it calls `fgate`,
    and f by `igate` (xlstm#98, kept there for its files): read them crosswise.
    """

    name = "slstm"
    forms = ("recurrent",)
    block_norm = "layer"
    block_mlp = "geglu"
    block_mlp_factor = 4 / 3

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        conv_size: int = 4,
        norm_eps: float = 1e-5,
        layer_index: int = 0,
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "norm_eps", norm_eps, zero=True)
        whole(self.name, "depth", 1 if depth is None else depth)
        if conv_size != 0:
            whole(self.name, "conv_size", conv_size)
        if layer_index != 0:
            whole(self.name, "layer_index", layer_index)
        self.heads = heads_of(self.name, d_model, heads, head_dim)
        count, size = self.heads
        if count * size != d_model:
            raise ValueError(f"{self.name}: heads={count} times head_dim={size} must be d_model = {d_model}.")
        self.place = min(layer_index / (depth - 1), 1.0) if depth is not None and depth > 1 else 0.0
        self.conv = ShortConv(d_model, conv_size, bias=True, activation="silu") if conv_size else None
        self.input_gate, self.forget_gate, self.cell_input, self.output_gate = (
            HeadLinear(count, size, size) for _ in range(4)
        )
        self.recurrent = HeadLinear(count, size, 4 * size)
        self.norm = HeadNorm(count, size, eps=norm_eps, bias=False, zero_centered=True)
        self.bias = nn.Parameter(torch.empty(4, count, size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for part in (self.input_gate, self.forget_gate, self.cell_input, self.output_gate):
            reset_normal(part.weight, (0.4 / self.d_model) ** 0.5)
        size = self.heads.size
        with torch.no_grad():
            self.recurrent.weight.zero_()
            self.bias.zero_()
            # Division on the meta device would import torch's compiler.
            if not self.bias.is_meta:
                ramp = torch.arange(size, device=self.bias.device) / max(size - 1, 1)
                self.bias[1] = 5 - 12 * ramp ** (0.3 + 1.3 * self.place)
        exempt(self.bias)

    @property
    def _weight(self) -> Tensor:
        return self.cell_input.weight

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        hidden, cell, normalizer = torch.zeros(3, batch, *self.heads, device=device, dtype=wide_dtype(dtype)).clone()
        tensors = {"hidden": hidden, "cell": cell, "normalizer": normalizer}
        tensors["stabilizer"] = torch.full_like(hidden, NOTHING)
        return tensors if self.conv is None else tensors | {"window": self.conv.initial_window(batch, device, dtype)}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        loop = steps.loop(self.name, x)
        tensors: dict[str, Tensor] = {}
        convolved = x
        if self.conv is not None:
            convolved, tensors["window"] = self.conv(x, state.window, steps)
        x, convolved = x.unflatten(-1, self.heads), convolved.unflatten(-1, self.heads)
        sources = (self.input_gate(convolved), self.forget_gate(convolved), self.cell_input(x), self.output_gate(x))
        with without_autocast(x):
            names = ("hidden", "cell", "normalizer", "stabilizer")
            before = [state.tensors()[name].to(wide_dtype(sources[0].dtype)) for name in names]
            # In float16, as which a state may have been kept, the stabilizer of nothing is -inf.
            before[-1] = before[-1].nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=NOTHING)
            if loop is not None:
                own = wide(self.bias), wide(self.recurrent.weight)
                h, *after = loop(*sources, *own, *before, real=steps.mask, offsets=steps.offsets)
            else:
                given = torch.stack([wide(one) for one in sources], 2) + wide(self.bias)
                run = self._ragged if steps.rows is not None else self._run
                h, *after = steps.by_rows(run, given, *before)
        return self.norm(h).to(x.dtype).flatten(2), tensors | dict(zip(names, after, strict=True))

    def _ragged(
        self, given: Float[Tensor, "n l four h d"], counts: Int[Tensor, " n"], *before: Float[Tensor, "n h d"]
    ) -> tuple[Tensor, ...]:
        """`_run` for rows of unlike length: behind its last step a row writes nothing and forgets nothing."""
        behind = (torch.arange(given.shape[1], device=given.device) >= counts[:, None])[:, :, None, None]
        i, f, z, o = given.unbind(2)
        given = torch.stack([i.masked_fill(behind, -torch.inf), f.masked_fill(behind, torch.inf), z, o], 2)
        hidden, cell, normalizer, stabilizer = before
        none = (counts == 0)[:, None, None]
        # A row in which nothing was ever written has no average; its zero is shown over one, and not kept.
        h, _, *after = self._run(given, counts, hidden, cell, normalizer.masked_fill(none, 1), stabilizer)
        last = counts[:, None, None, None].expand(-1, 1, *self.heads)
        hidden = torch.cat([hidden[:, None], h], 1).gather(1, last).squeeze(1)
        kept = (torch.where(none, old, new) for old, new in zip((cell, normalizer, stabilizer), after, strict=True))
        return h, hidden, *kept

    def _run(
        self,
        given: Float[Tensor, "n l four h d"],
        counts: Int[Tensor, " n"],
        hidden: Float[Tensor, "n h d"],
        cell: Float[Tensor, "n h d"],
        normalizer: Float[Tensor, "n h d"],
        stabilizer: Float[Tensor, "n h d"],
    ) -> tuple[Tensor, ...]:
        """What is shown at each step, and each row's hidden, cell, normalizer and stabilizer after the last."""
        if not given.shape[1]:
            return given[:, :, 0] * 1, hidden * 1, cell * 1, normalizer * 1, stabilizer * 1
        # Heads before rows, so that one product of matrices a head is one call a step.
        given = given.permute(1, 3, 0, 2, 4).flatten(3)
        mixing = wide(self.recurrent.weight).mT.to(given.dtype)
        before = hidden.transpose(0, 1), torch.stack([cell, normalizer]).transpose(1, 2), stabilizer.transpose(0, 1)
        shown, pair, last = _loop(given, mixing, *before)
        # Clones, because a view would keep all that it is a view of for as long as the state lives.
        cell, normalizer = (one.clone() for one in pair.transpose(1, 2).unbind(0))
        return shown.permute(2, 0, 1, 3), shown[-1].clone().transpose(0, 1), cell, normalizer, last.transpose(0, 1)


def _loop(given: Tensor, mixing: Tensor, h: Tensor, pair: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loop by whichever way is fast: a compiler wants to see each operation, and has no calls to save.

    And as a chain of tensors for what a backward pass written by hand doesn't serve.
    """
    if torch.compiler.is_compiling() or beyond_backward() is not None:
        return _unrolled(given, mixing, h, pair, m)
    inputs = (given, mixing, h, pair, m)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        return cast(tuple[Tensor, Tensor, Tensor], _Loop.apply(*inputs))
    return _looped(*inputs, keep=False)[:3]


def _unrolled(given: Tensor, mixing: Tensor, h: Tensor, pair: Tensor, m: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loop as a chain of tensors: from (t, h, n, 4 d) to what is shown (t, h, n, d), and the last c, n and m."""
    shown = []
    for raw in given.unbind(0):
        i, f, z, o = torch.baddbmm(raw, h, mixing).chunk(4, -1)
        f = F.logsigmoid(f) + m
        m = torch.maximum(i, f).detach()
        write = (i - m).exp()
        pair = pair * (f - m).exp() + torch.stack([write * z.tanh(), write])
        h = o.sigmoid() * pair[0] / pair[1]
        shown.append(h)
    return torch.stack(shown), pair, m


def _looped(
    given: Tensor, mixing: Tensor, h: Tensor, pair: Tensor, m: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor, tuple[Tensor, ...]]:
    """`_unrolled` in buffers made once; with `keep` they have every step, and all that the gradient needs comes too."""
    length, width = len(given), h.shape[-1]
    count, again = (length, 1) if keep else (1, length)
    gates, pairs = given.new_empty(count, *given.shape[1:]), pair.new_empty(count + keep, *pair.shape)
    shown, ratio, logs, mixing = torch.empty_like(given[..., :width]), torch.empty_like(h), [], mixing.contiguous()
    pairs[0] = pair
    views = gates.unflatten(-1, (4, width))
    outs, first_two = gates.unbind(0) * again, views[..., :2, :].unbind(0) * again
    before, after = pairs[:count].unbind(0) * again, pairs[keep:].unbind(0) * again
    four = (one.unbind(0) * again for one in views.unbind(-2))
    for t, (raw, i, f, z, o) in enumerate(zip(given.unbind(0), *four, strict=True)):
        torch.baddbmm(raw, h, mixing, out=outs[t])
        log = F.logsigmoid(f)
        torch.add(log, m, out=f)
        m = torch.maximum(i, f)
        first_two[t].sub_(m.unsqueeze(-2)).exp_()
        z.tanh_()
        o.sigmoid_()
        c, n = torch.mul(before[t], f, out=after[t])
        torch.div(c.addcmul_(i, z), n.add_(i), out=ratio)
        h = torch.mul(ratio, o, out=shown[t])
        if keep:
            logs.append(log)
    return shown, pairs[-1].clone(), m, (gates, pairs, torch.stack(logs)) if keep else ()


class _Loop(torch.autograd.Function):
    """`_looped` with a backward pass of its own, of 12 calls a step."""

    @staticmethod
    def forward(
        ctx: Any, given: Tensor, mixing: Tensor, h: Tensor, pair: Tensor, start: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        shown, last, m, kept = _looped(given, mixing, h, pair, start, keep=True)
        ctx.save_for_backward(*kept, shown, given, mixing, h, pair, start)
        ctx.mark_non_differentiable(m)
        return shown, last, m

    @staticmethod
    def backward(ctx: Any, d_shown: Tensor, d_pair: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """From the last step to the first; all factors that need no gradient are made before, for all steps at once."""
        gates, pairs, logs, shown, *given = ctx.saved_tensors
        if torch.is_grad_enabled():
            given = apart(given)
            return gradients_again(given, lambda: _unrolled(*given)[:2], (d_shown, d_pair))
        _, mixing, start, _, _ = given
        i, f, z, o = gates.unflatten(-1, (4, -1)).unbind(-2)
        ratio = pairs[1:, 0] / pairs[1:, 1]
        to_o, to_c, to_z, to_f = o * (1 - o) * ratio, o / pairs[1:, 1], i * (1 - z * z), f * -torch.expm1(logs)
        d_raw = torch.empty_like(gates)
        d_i, d_f, d_z, d_o = d_raw.unflatten(-1, (4, -1)).unbind(-2)
        d_pair, back, d_h = d_pair.clone(), mixing.mT.contiguous(), d_shown[-1]
        d_c, d_n = d_pair
        for t in reversed(range(len(gates))):
            if t + 1 < len(gates):
                d_h = torch.baddbmm(d_shown[t], d_raw[t + 1], back)
            torch.mul(d_h, to_o[t], out=d_o[t])
            share = d_h * to_c[t]
            d_c.add_(share)
            d_n.addcmul_(share, ratio[t], value=-1)
            torch.mul(d_c, to_z[t], out=d_z[t])
            torch.mul(torch.addcmul(d_n, d_c, z[t]), i[t], out=d_i[t])
            kept = (d_pair * pairs[t]).sum(0)
            torch.mul(kept, to_f[t], out=d_f[t])
            d_pair.mul_(f[t])
        met = torch.cat([start[None], shown[:-1]])
        d_mixing = met.transpose(0, 1).flatten(1, 2).mT @ d_raw.transpose(0, 1).flatten(1, 2)
        return d_raw, d_mixing, d_raw[0] @ back, d_pair, kept * f[0]
