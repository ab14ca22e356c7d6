"""S4: one linear system a channel, whose matrix is diagonal plus a product of two vectors."""

from typing import NamedTuple

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from lavagna.algebra.transition import dplr
from lavagna.forms.convolution import convolve
from lavagna.layers.time_invariant import TimeInvariant
from lavagna.lti.cauchy import kernel_between, read_after
from lavagna.lti.dplr import bilinear, flat, flat_reader, free_response, last_state, powers, unflat
from lavagna.lti.exponential import log_bilinear
from lavagna.lti.initial import left_half, rates, reset_log_steps
from lavagna.lti.nplr import nplr
from lavagna.modules.options import choice, modes_of, step_range, switch
from lavagna.modules.pairs import complex_of, pairs_of
from lavagna.modules.precision import wide_dtype
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt

# The bases whose matrix is normal but for one product of two vectors.
INITS = ("legs", "lagt", "fout")


class Modes(NamedTuple):
    """A continuous system a channel in complex128, the conjugate of each mode implied: what the kernel wants."""

    Lambda: Complex[Tensor, "d n"]
    P: Complex[Tensor, "d 1 n"]
    Q: Complex[Tensor, "d 1 n"]
    B: Complex[Tensor, "d n"]
    C: Complex[Tensor, "d n"]
    step: Float[Tensor, " d"]

    def all(self) -> "Modes":
        """Every mode written out, the conjugates behind."""
        return Modes(*(torch.cat([x, x.conj()], -1) if x.is_complex() else x for x in self))


class S4(TimeInvariant):
    """Every channel is filtered by a linear system of its own, that of HiPPO in its normal basis when it starts.

        x' = A x + B u,  y = C x          A = diag(Lambda) - P^H Q          Lambda = -exp(A_log) + i A_imag

    The bilinear rule makes of it a step `x_t = A_bar x_{t-1} + B_bar u_t` whose A_bar is diagonal plus a product of two
    vectors again: O(d_state) a step, `lavagna.recur` with `dplr` in every form, and a convolution with the kernel
    `s4_kernel` in O(t (log t + d_state)) a channel. The block around it is that of `TimeInvariant`. Options:

    - d_state: real degrees of freedom of a channel, 64; half as many modes are stored, their conjugates are implied.
    - init: the HiPPO basis to start from, "legs", "lagt" or "fout"; the last two with rates of 1e-4 for their 0.
    - tied: Q is P, so that A decays whatever is learned. False is the paper's: P and Q are learned apart, and A may
      come to grow.
    - dt_min, dt_max: between them the first step sizes are log-uniform.
    - bidirectional: read both ways, see `TimeInvariant`.

    State: `memory` (b, d, 1, d_state / 2, 2), complex numbers as pairs. Neither it nor anything learned depends on the
    lengths of texts, and nothing is kept from call to call. Inside it is float64, in the convolution only what all rows
    share. C is complex normal with variance 1/2 a part.
    Gu, Goel and Re 2021, arXiv 2111.00396; tied: Goel et al. 2022, arXiv 2202.09729; `S4Block` of state-spaces/s4.
    """

    name = "s4"

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        init: str = "legs",
        tied: bool = True,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional)
        choice(self.name, "init", init, INITS)
        switch(self.name, "tied", tied)
        step_range(self.name, dt_min, dt_max)
        self.modes, self.init, self.range = modes_of(self.name, d_state), init, (dt_min, dt_max)
        self.log_step = nn.Parameter(torch.empty(d_model))
        self.A_log, self.A_imag = (nn.Parameter(torch.empty(d_model, self.modes)) for _ in range(2))
        self.P, self.B = (nn.Parameter(torch.empty(d_model, self.modes, 2)) for _ in range(2))
        self.Q = None if tied else nn.Parameter(torch.empty(d_model, self.modes, 2))
        self.C = nn.Parameter(torch.empty(self.directions, d_model, self.modes, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_log_steps(self.log_step, low=self.range[0], high=self.range[1])
        if not self.C.is_meta:
            nn.init.normal_(self.C, std=0.5**0.5)
            self._reset_modes()
        exempt(self.log_step, self.A_log, self.A_imag, self.P, self.Q, self.B, self.C)

    def _reset_modes(self) -> None:
        # Whatever the default device is: on another, eigenvectors may come out turned.
        with torch.device("cpu"):
            Lambda, P, B, _ = (x[..., : self.modes] for x in nplr(self.init, 2 * self.modes))
        start = rates(Lambda)
        with torch.no_grad():
            self.A_log.copy_(start.log_rate)
            self.A_imag.copy_(start.frequency)
            for parameter, value in ((self.P, P[0]), (self.Q, P[0]), (self.B, B)):
                if parameter is not None:
                    parameter.copy_(pairs_of(value))

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        shape = batch, self.d_model, 1, self.modes, 2
        return {"memory": torch.zeros(shape, device=device, dtype=wide_dtype(dtype))}

    def system(self, direction: int = 0) -> Modes:
        """The continuous systems as they now are, read by the C of a direction."""
        P, B, C = (complex_of(x.double()) for x in (self.P, self.B, self.C[direction]))
        Q = P if self.Q is None else complex_of(self.Q.double())
        Lambda = left_half(self.A_log.double(), self.A_imag.double())
        return Modes(Lambda, P.unsqueeze(1), Q.unsqueeze(1), B, C, self.log_step.double().exp())

    def respond(
        self, u: Float[Tensor, "b t d"], memory: Float[Tensor, "n ..."], steps: Steps, direction: int
    ) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "n ..."]]:
        system, start = self.system(direction), complex_of(memory)
        if steps.convolves(self.name):

            def convolved(u: Tensor, counts: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
                return _convolved(system, u, None if steps.rows is None else counts, start, steps.fresh)

            y, last = steps.by_rows(convolved, u, start)
        else:
            y, last = _recurred(system, u, start, steps)
        return y, pairs_of(last).to(memory.dtype)


def _recurred(system: Modes, u: Tensor, start: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
    """Every other form: the recurrence of all the modes, in float64."""
    Lambda, P, Q, B, C, step = system.all()
    one = bilinear(Lambda, P, B, step, Q=Q)
    # The library writes S_t = S_{t-1} A_t with the state in rows: A_t is A_bar turned around.
    parts = log_bilinear(step[:, None] * Lambda), one.right.squeeze(1), one.left.squeeze(1)
    a = dplr(*(x[None, None] for x in parts))
    q, k = (x.expand(*u.shape[:2], *x.shape) for x in (C, one.write))
    y, last = steps.recur(a, q, k, u.double().unsqueeze(-1), torch.cat([start, start.conj()], -1))
    return y.real.squeeze(-1).to(u.dtype), last[..., : start.shape[-1]]


def _convolved(system: Modes, u: Tensor, counts: Tensor | None, start: Tensor, fresh: bool) -> tuple[Tensor, Tensor]:
    """Rows (m, l, d), the kernel's convolution with them and what the state says by itself; `counts` are real."""
    Lambda, P, Q, B, C, step = system
    length, u = u.shape[1], u.mT
    if not length:
        return u.mT, start.clone()
    one = bilinear(Lambda, P, B, step, Q=Q, conjugates=True)
    found = powers(one, length)
    ended = read_after(found, C, length, conjugates=True)
    y = convolve(u, kernel_between(*system, length, ended, conjugates=True).to(u.dtype))
    found = [power.to(u.dtype) for power in found]
    write, reader = flat(one.write, conjugates=True).to(u.dtype), flat_reader(C, conjugates=True).to(u.dtype)
    # All rows of a channel meet its powers at once: (d, m, .).
    state = flat(start.squeeze(2).transpose(0, 1), conjugates=True).to(u.dtype)
    if not fresh:
        y = y + free_response(found, reader, state, length).transpose(0, 1)
    last = last_state(found, write, u.transpose(0, 1), state, counts)
    return y.mT, unflat(last).transpose(0, 1).unsqueeze(2)
