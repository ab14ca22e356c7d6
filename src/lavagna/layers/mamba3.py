"""Mamba-3: a state space whose input is integrated by a trapezoid and whose memory turns while it fades."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.algebra.transition import scalar
from lavagna.layers.layer import Layer
from lavagna.modules.decay import reset_steps, step_size
from lavagna.modules.heads import expanded, groups_of, heads_of
from lavagna.modules.linear import Linear, OutLinear, WideLinear
from lavagna.modules.norm import GroupedRMSNorm, RMSNorm
from lavagna.modules.options import number, switch, whole
from lavagna.modules.precision import roomy, wide, wide_dtype
from lavagna.modules.rotary import turn
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State

# The slowest rate of decay.
FLOOR = 1e-4


class Mamba3(Layer):
    """A state space that writes every token twice, half in its own step and half in the next, and turns as it fades.

        h_t = alpha_t h_{t-1} + beta_t x_{t-1} B_{t-1}^T + gamma_t x_t B_t^T          y_t = h_t C_t + D x_t
        alpha = exp(dt A)          beta = (1 - lambda) dt alpha          gamma = lambda dt

    dt = softplus(. + dt_bias), A = -phi(.) <= -1e-4 with phi(x) = 1 + x above zero and 1 / (1 - x) below, and
    lambda = sigmoid(.) are numbers a head, linear in the input. B and C are RMS-normalized over d_state, a bias a head
    is added, and then pairs of their channels are turned by theta_t = theta_{t-1} + pi tanh(angle_t) dt_t, where
    angle_t is linear in the input and shared by the heads: as if h were complex and faded by
    exp(dt A - i pi tanh(angle) dt). Lambda 1 and angle 0 are Mamba-2's recurrence. No convolution, no activation on x;
    the result is gated, `out(y * silu(z))`.

    With `rank` R > 1 (the paper's MIMO) every token has R keys and R queries a head, and R values, x times learned
    vectors: R products are summed into the same memory, each of R reads is gated by itself, and their weighted sum is
    what comes out.

    - expand: width of x over d_model, 2; heads, head_dim: of x, the largest size up to 64 by default.
    - d_state: width of B and C, even, d_model up to 128 by default; groups: how many B and C there are, 1.
    - rope_fraction: the part of d_state that turns, 1/2.
    - norm: RMS-normalize each head of y before its gate.

    State: `memory` (b, h, head_dim, d_state), `angle` (b, h, pairs) in radians from 0 to 2 pi and always float64,
    `key` (b, h, R, d_state) the last keys, turned, and `value` (b, h, head_dim) the last x.

    Each token costs one write (R in all): half of what it adds to the memory waits until the next step says how much.
    Initial step sizes softplus(dt_bias) are log-uniform in [1e-3, 0.1], biases of B and C and D are 1.
    Lahoti, Li, Chen et al. 2026, arXiv 2603.15569; `Mamba3` of mamba_ssm (the paper and its first release have
    phi = softplus).
    """

    name = "mamba3"

    def __init__(
        self,
        d_model: int,
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        d_state: int | None = None,
        groups: int = 1,
        rank: int = 1,
        expand: float = 2,
        rope_fraction: float = 0.5,
        norm: bool = False,
        norm_eps: float = 1e-5,
    ) -> None:
        super().__init__(d_model)
        width = expanded(self.name, "d_model", d_model, expand)
        self.values = heads_of(self.name, width, heads, head_dim, what="expand * d_model")
        self.keys = groups_of(self.name, d_model, self.values, groups, d_state)
        self.rank = rank
        self._check(rope_fraction, norm, norm_eps)
        count, size = self.values
        self.turned = int(self.keys.size * rope_fraction) // 2
        self.sizes = [count, count, count, self.turned]
        self.x = Linear(d_model, count * size)
        self.gate = Linear(d_model, count * size)
        self.bc = Linear(d_model, 2 * rank * groups * self.keys.size)
        self.dynamics = WideLinear(d_model, sum(self.sizes))
        self.B_norm, self.C_norm = (RMSNorm(self.keys.size, eps=norm_eps) for _ in range(2))
        self.norm = GroupedRMSNorm(count * size, groups=count, norm_before_gate=True, eps=norm_eps) if norm else None
        self.out = OutLinear(count * size, d_model)
        self.B_bias, self.C_bias = (nn.Parameter(torch.empty(count, rank, self.keys.size)) for _ in range(2))
        self.dt_bias, self.D = (nn.Parameter(torch.empty(count)) for _ in range(2))
        if rank > 1:
            self.rank_x, self.rank_gate, self.rank_out = (
                nn.Parameter(torch.empty(count, rank, size)) for _ in range(3)
            )
        self.reset_parameters()

    def _check(self, rope_fraction: float, norm: bool, norm_eps: float) -> None:
        number(self.name, "norm_eps", norm_eps, zero=True)
        number(self.name, "rope_fraction", rope_fraction, most=1)
        switch(self.name, "norm", norm)
        whole(self.name, "rank", self.rank)
        size = self.keys.size
        if size % 2 or int(size * rope_fraction) < 2:
            raise ValueError(
                f"{self.name}: d_state={size} must be even, and rope_fraction={rope_fraction} of it at least 2, since "
                f"pairs of channels are turned. Use d_state={max(size + size % 2, math.ceil(2 / rope_fraction))}."
            )

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_steps(self.dt_bias)
        for parameter in (self.B_bias, self.C_bias, self.D):
            nn.init.ones_(parameter)
        exempt(self.B_bias, self.C_bias, self.D)
        if self.rank > 1:
            nn.init.constant_(self.rank_x, 1 / self.rank)
            nn.init.ones_(self.rank_gate)
            nn.init.constant_(self.rank_out, 1 / self.rank)
            exempt(self.rank_x, self.rank_gate, self.rank_out)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        (count, size), keys, dtype = self.values, self.keys.size, wide_dtype(dtype)
        return {
            "memory": torch.zeros(batch, count, size, keys, device=device, dtype=dtype),
            "angle": torch.zeros(batch, count, self.turned, device=device, dtype=torch.float64),
            "key": torch.zeros(batch, count, self.rank, keys, device=device, dtype=dtype),
            "value": torch.zeros(batch, count, size, device=device, dtype=dtype),
        }

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        dt, rate, trap, angle = self.dynamics(x).split(self.sizes, -1)
        dt, late = step_size(dt, self.dt_bias), torch.sigmoid(trap)
        theta, angle = self._turning(angle, dt, state.angle, steps)
        v = self.x(x).unflatten(-1, self.values)
        B, C = self.bc(x).unflatten(-1, (2, self.rank, *self.keys)).unbind(2)
        q = self._turned(self.C_norm(C), self.C_bias, theta).to(roomy(v).dtype)
        k = self._turned(self.B_norm(B), self.B_bias, theta).to(roomy(v).dtype)
        y, tensors = self._trapezoid((-_phi(rate).clamp_min(FLOOR) * dt, dt, late), q, k, v, state, steps)
        return self.out(self._gated(y, self.gate(x)).flatten(2), v.dtype), tensors | {"angle": angle}

    def _turning(self, angle: Tensor, dt: Tensor, start: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
        """Every pair's angle at each step, (b, t, h, pairs), and after the last; float64, whatever the activations."""
        # Angles add up over the whole text: float32 would be off by a thousandth after 1e5 steps.
        turns = math.pi * torch.tanh(angle.double()).unsqueeze(2) * dt.double().unsqueeze(-1)
        theta, after = steps.by_rows(_added, turns, start.double())
        return theta, after.remainder(2 * math.pi)

    def _turned(self, x: Tensor, bias: Tensor, theta: Tensor) -> Tensor:
        """Keys or queries (b, t, r, g, n) for every head, biased and turned: (b, t, h, r, n)."""
        x = wide(x).transpose(2, 3).repeat_interleave(self.values.count // self.keys.count, 2) + wide(bias)
        # Which channels make a pair is a matter of checkpoints: the published kernels differ with the rank.
        return turn(x, theta.unsqueeze(3), pairs="interleaved" if self.rank == 1 else "halves")

    def _trapezoid(
        self, rates: tuple[Tensor, Tensor, Tensor], q: Tensor, k: Tensor, v: Tensor, state: State, steps: Steps
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The reads (b, t, h, r, v) of the two-sided recurrence, one write a token: what the step before left over.

        Between steps the memory lacks what its last token writes in its own step, gamma v k^T, so that the next step
        writes all that is left of it at once, alpha_t (gamma_{t-1} + (1 - lambda_t) dt_t) v_{t-1} k_{t-1}^T, and
        nothing depends on a later token. A read adds its own step's gamma (q . k) v.
        """
        log_decay, dt, late = rates
        gamma = late * dt
        zeros = torch.zeros_like(state.memory[..., 0, 0])
        (k_before, key), (v_before, value) = steps.before(wide(k), state.key), steps.before(wide(v), state.value)
        gamma_before, last = steps.before(gamma, zeros)
        write = (log_decay.exp() * (gamma_before + (1 - late) * dt))[..., None, None] * self._ranked(v_before)
        reads, memory = self._swept(log_decay, q, k_before.to(q.dtype), write.to(q.dtype), state.memory, steps)
        own = self._ranked(wide(v))
        y = wide(reads) + (wide(q) @ wide(k).mT) @ (gamma[..., None, None] * own) + wide(self.D)[:, None, None] * own
        memory = memory + (last[..., None, None] * self._ranked(value)).mT @ key
        return y.to(q.dtype), {"memory": memory, "key": key, "value": value}

    def _swept(
        self, log_decay: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Tensor, steps: Steps
    ) -> tuple[Tensor, Tensor]:
        """Every token's `rank` writes, one after the other, then its reads of all of them: (b, t, h, r, v)."""
        # Only the first of a token's writes comes after a decay.
        decays = F.pad(log_decay.unsqueeze(2), (0, 0, 0, self.rank - 1))
        each_q, each_k, each_v = (x.transpose(2, 3).flatten(1, 2) for x in (q, k, v))
        a = scalar(decays.flatten(1, 2).unsqueeze(-1))
        o, memory = steps.recur(a, each_q, each_k, each_v, memory, parts=self.rank)
        reads = o.unflatten(1, (steps.length, self.rank)).transpose(2, 3)
        if self.rank > 1:
            # The read after the r-th write has not seen the later ones of its token.
            reads = reads + torch.triu(q @ k.mT, 1) @ v
        return reads, memory

    def _ranked(self, v: Tensor) -> Tensor:
        """The values (..., h, r, v) that a token's x (..., h, v) becomes."""
        return v.unsqueeze(-2) if self.rank == 1 else v.unsqueeze(-2) * wide(self.rank_x)

    def _gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Reads (b, t, h, r, v) gated one by one and summed: (b, t, h, v)."""
        gate = gate.unflatten(-1, self.values).unsqueeze(3)
        if self.rank > 1:
            gate = gate * self.rank_gate.to(gate.dtype)
        if self.norm is None:
            y = y * F.silu(gate)
        else:
            y, gate = (x.transpose(2, 3).flatten(3) for x in (y, gate))
            y = self.norm(y, gate).unflatten(-1, self.values).transpose(2, 3)
        return y.squeeze(3) if self.rank == 1 else (y * self.rank_out.to(y.dtype)).sum(3)


def _phi(x: Tensor) -> Tensor:
    """`1 + x` above zero and `1 / (1 - x)` below: positive, and 1 with slope 1 at zero."""
    return torch.where(x >= 0, 1 + x, 1 / (1 - x.clamp_max(0)))


def _added(x: Tensor, counts: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    sums = torch.cat([start.unsqueeze(1), x], 1).cumsum(1)
    return sums[:, 1:], sums[:, -1]
