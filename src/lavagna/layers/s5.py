"""S5: one diagonal linear system that all channels write to and read from."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn

from lavagna.algebra.transition import scalar
from lavagna.forms.convolution import convolve
from lavagna.layers.time_invariant import TimeInvariant
from lavagna.lti.discretize import discretize
from lavagna.lti.initial import left_half, rates, reset_log_steps
from lavagna.lti.nplr import nplr
from lavagna.lti.vandermonde import diagonal_kernel
from lavagna.modules.options import choice, modes_of, number, step_range, whole
from lavagna.modules.pairs import complex_of, pairs_of
from lavagna.modules.precision import wide_dtype
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt

READOUTS = ("lecun", "normal")


class S5(TimeInvariant):
    """One linear system of d inputs and d outputs whose matrix is diagonal, where S4 has a system for each channel.

        x_t = exp(step A) x_{t-1} + Bb u_t          y_t = GLU(W_out GELU(2 Re C x_t + D u_t))
        A = -exp(A_log) + i A_imag          step = step_rescale exp(log_step)          Bb = A^-1 (exp(step A) - 1) B

    x has d_state / 2 complex numbers, each with a step of its own and standing for itself and its conjugate; B and C
    are full matrices. As a recurrence each is a head with one key and one value. In the form "convolution" each is
    convolved with the powers of its decay, O(d_state t log t), which on a CPU costs less than a scan at every length.

    - d_state: real degrees of freedom, 64; blocks: how many HiPPO systems of d_state / blocks it starts from, a
      divisor of d_state / 2, up to 4 by default.
    - readout: C starts as a real LeCun-normal matrix in the systems' eigenvectors, "lecun", or as complex standard
      normal, "normal". B is LeCun-normal in the same sense.
    - dt_min, dt_max: between them the first step sizes are log-uniform, one a state.
    - step_rescale: what a step lasts beside one of training; it may be set anew. For a signal sampled twice as densely
      it is 0.5: what a signal that is constant between samples is answered then stays the same, exactly.
    - bidirectional: read both ways, see `TimeInvariant`.

    State: `memory` (b, d_state / 2, 1, 1, 2), complex numbers as pairs. Smith, Warrington and Linderman 2022,
    arXiv 2208.04933; `S5SSM` of lindermanlab/S5, with the block of S4 around it.
    """

    name = "s5"

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        blocks: int | None = None,
        readout: str = "lecun",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        step_rescale: float = 1.0,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional)
        choice(self.name, "readout", readout, READOUTS)
        number(self.name, "step_rescale", step_rescale)
        step_range(self.name, dt_min, dt_max)
        self.modes = modes = modes_of(self.name, d_state)
        self.blocks = self._blocks(blocks)
        self.readout, self.range, self.step_rescale = readout, (dt_min, dt_max), step_rescale
        self.A_log, self.A_imag, self.log_step = (nn.Parameter(torch.empty(modes)) for _ in range(3))
        self.B = nn.Parameter(torch.empty(modes, d_model, 2))
        self.C = nn.Parameter(torch.empty(self.directions, d_model, modes, 2))
        self.reset_parameters()

    def _blocks(self, blocks: int | None) -> int:
        if blocks is None:
            return math.gcd(self.modes, 4)
        whole(self.name, "blocks", blocks)
        if self.modes % blocks:
            raise ValueError(
                f"{self.name}: blocks={blocks} does not divide d_state / 2 = {self.modes}. "
                f"Use blocks={math.gcd(self.modes, blocks)}."
            )
        return blocks

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_log_steps(self.log_step, low=self.range[0], high=self.range[1])
        if not self.B.is_meta:
            self._reset_system()
        exempt(self.A_log, self.A_imag, self.log_step, self.B, self.C)

    def _reset_system(self) -> None:
        half = self.modes // self.blocks
        # Whatever the default device is: on another, eigenvectors may come out turned.
        with torch.device("cpu"):
            Lambda, _, _, V = nplr("legs", 2 * half)
        into, d = V[:, :half].to(self.B.device), self.d_model
        B = torch.empty(self.blocks, 2 * half, d, device=self.B.device).normal_(std=d**-0.5)
        C = torch.empty(self.directions, d, self.blocks, 2 * half, device=self.B.device)
        C.normal_(std=(2 * self.modes) ** -0.5)
        with torch.no_grad():
            log_rate, frequency = rates(Lambda[:half])
            self.A_log.copy_(log_rate.repeat(self.blocks))
            self.A_imag.copy_(frequency.repeat(self.blocks))
            self.B.copy_(pairs_of(into.mH @ B.to(into)).flatten(0, 1))
            self.C.copy_(pairs_of((C.to(into) @ into).flatten(2)))
            if self.readout == "normal":
                nn.init.normal_(self.C, std=0.5**0.5)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"memory": torch.zeros(batch, self.modes, 1, 1, 2, device=device, dtype=wide_dtype(dtype))}

    def respond(
        self, u: Float[Tensor, "b t d"], memory: Float[Tensor, "n ..."], steps: Steps, direction: int
    ) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "n ..."]]:
        log_decay, write = self._discrete()
        # Products of real matrices: a complex number is two channels side by side.
        written = complex_of(F.linear(u, _rows(write).to(u.dtype)).unflatten(-1, (self.modes, 2)))
        start = complex_of(memory)
        if steps.convolves(self.name):

            def convolved(v: Tensor, counts: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
                return _convolved(log_decay, v, counts, start, steps.fresh)

            x, last = steps.by_rows(convolved, written, start)
        else:
            v = written.to(log_decay.dtype).unsqueeze(-1)
            one = v.new_ones(*v.shape[:2], 1, 1)
            x, last = steps.recur(scalar(log_decay[None, None, :, None]), one, one, v, start)
            x = x.squeeze(-1).to(written.dtype)
        # Twice the real part of C x, conj(x) being the other half of the state.
        C = 2 * self.C[direction] * self.C.new_tensor([1, -1])
        return F.linear(pairs_of(x).flatten(2), C.flatten(1).to(u.dtype)), pairs_of(last).to(u.dtype)

    def _discrete(self) -> tuple[Complex[Tensor, " p"], Complex[Tensor, "p d"]]:
        """Log-decays and inputs of one step, in float64: in float32 an angle would be off by 1e-4 after 1000 steps."""
        A = left_half(self.A_log.double(), self.A_imag.double())
        step = self.step_rescale * self.log_step.double().exp()
        z, B = step * A, step[:, None] * complex_of(self.B.double())
        return z, discretize(z, B, 1.0, "zoh", structure="diagonal").B


def _rows(z: Complex[Tensor, "p d"]) -> Float[Tensor, "p2 d"]:
    """Real and imaginary parts of each row, one under the other."""
    return pairs_of(z).transpose(1, 2).flatten(0, 1)


def _convolved(
    log_decay: Complex[Tensor, " p"],
    v: Complex[Tensor, "n l p"],
    counts: Int[Tensor, " n"],
    start: Complex[Tensor, "n p 1 1"],
    fresh: bool,
) -> tuple[Tensor, Tensor]:
    """The states of rows whose first `counts` steps are real, and each row's state after those."""
    z, before = log_decay[:, None], start.flatten(1)
    kernel = diagonal_kernel(v.new_ones(z.shape), z, v.shape[1])
    x = convolve(v.mT, kernel).mT
    if not fresh:
        x = x + diagonal_kernel((before * log_decay.exp()).to(v.dtype)[..., None], z, v.shape[1]).mT
    every = torch.cat([before[:, None], x], 1)
    return x, every.gather(1, counts[:, None, None].expand(-1, 1, x.shape[-1])).transpose(1, 2)[..., None]
