"""Softmax attention with rotary positions: the baseline whose memory grows with the text."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.layers.layer import Layer
from lavagna.modules import rotary
from lavagna.modules.attention import append, attend, attend_one_by_one
from lavagna.modules.heads import heads_of
from lavagna.modules.linear import Linear
from lavagna.modules.options import number, whole
from lavagna.modules.steps import Steps
from lavagna.state import State


class SoftmaxAttention(Layer):
    """Causal attention over all tokens so far: the baseline, not a recurrence with a fixed-size memory.

        o_t = sum over s <= t of softmax_s(R_t q_t . R_s k_s / sqrt(head_dim)) v_s

    R turns pairs of channels by the position (rotary, base `rotary_base`). Its state is the keys, already turned, and
    the values of every token seen, so it grows: a token costs time and memory in proportion to the text before it.
    Forms: "parallel" (all queries at once) and "recurrent" (one query after the other); any cut of a text is exact.

    - heads, head_dim: head_dim even; the largest size up to 64 that divides d_model by default.
    - depth: how many layers the model has; the output weights start smaller by the square root of twice that
      (Radford et al. 2019).

    State: `keys`, `values` (b, longest text, h, head_dim), zeros behind each row's last token.
    Vaswani et al. 2017, arXiv 1706.03762; Su et al. 2021, arXiv 2104.09864.
    """

    name = "softmax_attention"
    forms = ("recurrent", "parallel")

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        rotary_base: float = 10000.0,
        depth: int | None = None,
    ) -> None:
        super().__init__(d_model)
        number(self.name, "rotary_base", rotary_base)
        if depth is not None:
            whole(self.name, "depth", depth)
        self.heads = heads_of(self.name, d_model, heads, head_dim)
        if self.heads.size % 2:
            raise ValueError(
                f"{self.name}: head_dim must be even, for channels turn in pairs, but is {self.heads.size}. "
                f"Use head_dim={self.heads.size + 1} with heads={self.heads.count}."
            )
        self.rotary_base, self.depth = rotary_base, depth
        width = self.heads.count * self.heads.size
        self.qkv = Linear(d_model, 3 * width)
        self.out = Linear(width, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.depth is not None:
            with torch.no_grad():
                self.out.weight /= (2 * self.depth) ** 0.5

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        empty = torch.zeros(batch, 0, *self.heads, device=device, dtype=dtype)
        return {"keys": empty, "values": empty.clone()}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        q, k, v = self.qkv(x).unflatten(-1, (3, *self.heads)).unbind(2)
        positions, angles = steps.positions(state.tokens_seen), rotary.standard(self.heads.size, device=x.device)
        q, k = (rotary.rotate(z, positions, angles, base=self.rotary_base) for z in (q, k))
        steps.need_torch(self.name)
        rows, seen, cached = steps.rows, state.tokens_seen, state.keys.shape[1] > 0
        k, v = (z if rows is None else rows.gather(z) for z in (k, v))
        total = seen + steps.counts if cached or rows is not None else None
        keys, values = append(state.keys, k, seen, total), append(state.values, v, seen, total)
        read = attend_one_by_one if steps.form == "recurrent" else attend

        def reads(q: Tensor, counts: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> tuple[Tensor]:
            if cached:
                return (read(q, keys, values, seen),)
            return (read(q, keys[:, : q.shape[1]], values[:, : q.shape[1]], None),)

        (o,) = steps.by_rows(reads, q, keys.to(q.dtype), values.to(q.dtype), seen)
        return self.out(o.flatten(2)), {"keys": keys, "values": values}
