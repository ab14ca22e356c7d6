"""Softmax attention with rotary positions: the baseline whose memory grows, and what hybrids mix with recurrences."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.layers.layer import Layer
from lavagna.modules import rotary
from lavagna.modules.attention import append, attend, attend_one_by_one, newest
from lavagna.modules.heads import heads_of, key_heads_of
from lavagna.modules.linear import Linear, shrink
from lavagna.modules.norm import RMSNorm
from lavagna.modules.options import choice, number, switch, whole
from lavagna.modules.steps import Steps
from lavagna.state import State

NORMS = ("head", "zero_centered_head", "width")


class SoftmaxAttention(Layer):
    """Causal attention over all tokens so far: the baseline, not a recurrence with a fixed-size memory.

        o_t = sum over s <= t of softmax_s(R_t q_t . R_s k_s / sqrt(head_dim)) v_s

    R turns pairs of channels by the position (rotary, base `rotary_base`). Its state is the keys, already turned, and
    the values of every token seen, so it grows: a token costs time and memory in proportion to the text before it.
    Forms: "parallel" (all queries at once) and "recurrent" (one query after the other); any cut of a text is exact.

    - heads, head_dim: head_dim even; the largest size up to 64 that divides d_model by default.
    - kv_heads: keys and values, heads by default; query head i reads head i // (heads / kv_heads) of them.
    - rotary_fraction: the share of each head's channels, the first ones, that turn; 0 for none.
    - qk_norm: RMS norm of queries and keys before they turn, one over each "head" (with factors 1 + weight if
      "zero_centered_head") or one over the whole "width"; None for none. `norm_eps` is its epsilon.
    - gate: each head's read times sigmoid(W_g x) before the output projection (Qiu et al. 2025, arXiv 2505.06708).
    - window: o_t sees the last `window` tokens only, its own counted; the state keeps `window - 1`.
    - bias: of the projections of x; out_bias: of the output projection.
    - depth: how many layers the model has; the output weights start smaller by the square root of twice that
      (Radford et al. 2019).

    State: `keys`, `values` (b, longest text, kv_heads, head_dim), zeros behind each row's last token.
    Vaswani et al. 2017, arXiv 1706.03762; Su et al. 2021, arXiv 2104.09864; Ainslie et al. 2023, arXiv 2305.13245.
    """

    name = "softmax_attention"
    forms = ("recurrent", "parallel")

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        kv_heads: int | None = None,
        rotary_base: float = 10000.0,
        rotary_fraction: float = 1.0,
        qk_norm: str | None = None,
        norm_eps: float = 1e-5,
        gate: bool = False,
        window: int | None = None,
        bias: bool = False,
        out_bias: bool = False,
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "rotary_base", rotary_base)
        number(self.name, "norm_eps", norm_eps, zero=True)
        for option, given in {"gate": gate, "bias": bias, "out_bias": out_bias}.items():
            switch(self.name, option, given)
        for option, given in {"window": window, "depth": depth}.items():
            if given is not None:
                whole(self.name, option, given)
        if qk_norm is not None:
            choice(self.name, "qk_norm", qk_norm, NORMS)
        self.heads = heads_of(self.name, d_model, heads, head_dim)
        self.keys = key_heads_of(self.name, self.heads, kv_heads)
        self.turned = rotary.turned_channels(self.name, self.heads, rotary_fraction)
        self.rotary_base, self.window, self.depth = rotary_base, window, depth
        self.longest = None if window is None else window - 1
        self.readers = self.heads.count // self.keys.count
        queries, keys = self.heads.width, self.keys.width
        self.sizes = [queries, keys, keys]
        self.qkv = Linear(d_model, sum(self.sizes), bias=bias)
        self.gate = Linear(d_model, queries, bias=bias) if gate else None
        self.qk_norm = qk_norm
        self.q_norm, self.k_norm = (self._norm(width, norm_eps) for width in (queries, keys))
        self.out = Linear(queries, d_model, bias=out_bias)
        self.reset_parameters()

    def _norm(self, width: int, eps: float) -> RMSNorm | None:
        if self.qk_norm is None:
            return None
        span = width if self.qk_norm == "width" else self.heads.size
        return RMSNorm(span, eps=eps, zero_centered=self.qk_norm == "zero_centered_head")

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.depth is not None:
            shrink(self.out.weight, 2 * self.depth)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        empty = torch.zeros(batch, 0, *self.keys, device=device, dtype=dtype)
        return {"keys": empty, "values": empty.clone()}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        steps.need_torch(self.name)
        q, k, v = self._queries_keys_values(x, steps.positions(state.tokens_seen))
        single = steps.length == 1 and steps.rows is None
        step = steps.fused("attention_step", q, state.keys, state.values) if single else None
        if step is None:
            o, kept = self._attended(q, k, v, state, steps)
        else:
            o, keys, values = step(q, k, v, state.keys, state.values, state.tokens_seen, window=self.window)
            kept = {"keys": keys, "values": values}
        o = o.flatten(2) if self.gate is None else o.flatten(2) * self.gate(x).sigmoid()
        return self.out(o), kept

    def _attended(
        self, q: Tensor, k: Tensor, v: Tensor, state: State, steps: Steps
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What queries of any steps read, and the cache after them."""
        rows, cached = steps.rows, state.keys.shape[1] > 0
        seen = state.tokens_seen if self.longest is None else state.tokens_seen.clamp(max=self.longest)
        k, v = (z if rows is None else rows.gather(z) for z in (k, v))
        total = seen + steps.counts if cached or rows is not None else None
        keys, values = append(state.keys, k, seen, total), append(state.values, v, seen, total)
        read = attend_one_by_one if steps.form == "recurrent" else attend

        def reads(q: Tensor, counts: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor]:
            if cached:
                return (read(q, keys, values, seen, window=self.window),)
            return (read(q, keys[:, : q.shape[1]], values[:, : q.shape[1]], None, window=self.window),)

        (o,) = steps.by_rows(reads, q, keys.to(q.dtype), values.to(q.dtype), seen)
        return o, {"keys": newest(keys, total, self.longest), "values": newest(values, total, self.longest)}

    def _queries_keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By heads, queries and keys normed and turned."""
        q, k, v = self.qkv(x).split(self.sizes, -1)
        if self.q_norm is not None and self.k_norm is not None and self.qk_norm == "width":
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = q.unflatten(-1, self.heads), k.unflatten(-1, self.keys), v.unflatten(-1, self.keys)
        if self.q_norm is not None and self.k_norm is not None and self.qk_norm != "width":
            q, k = self.q_norm(q), self.k_norm(k)
        exponents = rotary.standard(self.turned, device=x.device)
        q, k = (rotary.rotate(z, positions, exponents, base=self.rotary_base) for z in (q, k))
        return q, k, v
