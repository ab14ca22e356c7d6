"""DSS: diagonal state spaces whose exponentials are normalized over the positions, or held to fade."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.layers.time_invariant import TimeInvariant
from lavagna.lti.dss import METHODS, dss_vectors
from lavagna.lti.initial import left_half, reset_log_steps, spectrum
from lavagna.modules.diagonal_response import Diagonal, respond
from lavagna.modules.options import choice, modes_of, step_range, whole
from lavagna.modules.pairs import complex_of
from lavagna.modules.precision import wide_dtype
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt


class DSS(TimeInvariant):
    """Every channel is filtered by exponentials that all channels share, at a step size and with weights of its own.

        softmax:  K_l = 2 Re sum_n (C_n / A_n) exp(l z_n) / sum over r < max_length of exp(r z_n)          z = step A
        exp:      K_l = 2 Re sum_n C_n (exp(z_n) - 1) / A_n exp(l z_n)

    Under "softmax" A = A_real + i A_imag may grow as well as fade: the sum keeps the filter bounded. It is taken over
    `max_length` positions, fixed here, so that the filter at a lag is the same whatever the call's length; past
    `max_length` the layer goes on as the recurrence it is. Under "exp", A = -exp(A_log) + i A_imag always fades, and
    max_length is not used: S4D with A shared and B = 1. Options:

    - d_state: real degrees of freedom of a channel, 64; half as many modes are stored, their conjugates are implied.
    - method: "softmax" or "exp"; max_length: 1024.
    - dt_min, dt_max: between them the first step sizes are log-uniform, one a channel.
    - bidirectional: read both ways, see `TimeInvariant`.

    State: `memory` (b, d, 1, d_state / 2, 2), complex numbers as pairs. A starts as HiPPO-LegS' normal part, C complex
    normal with variance 1/2 a part. Modes that grow by more than e^170 within `max_length` are lost.
    Gupta, Gu and Berant 2022, arXiv 2203.14343.
    """

    name = "dss"

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        method: str = "softmax",
        max_length: int = 1024,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional)
        choice(self.name, "method", method, METHODS)
        whole(self.name, "max_length", max_length)
        step_range(self.name, dt_min, dt_max)
        self.modes, self.range = modes_of(self.name, d_state), (dt_min, dt_max)
        self.method, self.max_length = method, max_length
        self.log_step = nn.Parameter(torch.empty(d_model))
        # The real part itself, or the logarithm of the rate.
        rate = nn.Parameter(torch.empty(self.modes))
        self.A_real, self.A_log = (rate, None) if method == "softmax" else (None, rate)
        self.A_imag = nn.Parameter(torch.empty(self.modes))
        self.C = nn.Parameter(torch.empty(self.directions, d_model, self.modes, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_log_steps(self.log_step, low=self.range[0], high=self.range[1])
        if not self.C.is_meta:
            nn.init.normal_(self.C, std=0.5**0.5)
            # Whatever the default device is: on another, digits may differ.
            with torch.no_grad(), torch.device("cpu"):
                A = spectrum("legs", 2 * self.modes)
                self.A_imag.copy_(A.imag)
                if self.A_real is not None:
                    self.A_real.copy_(A.real)
                if self.A_log is not None:
                    self.A_log.copy_((-A.real).log())
        exempt(self.log_step, self.A_real, self.A_log, self.A_imag, self.C)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        shape = batch, self.d_model, 1, self.modes, 2
        return {"memory": torch.zeros(shape, device=device, dtype=wide_dtype(dtype))}

    def discrete(self, direction: int = 0) -> Diagonal:
        """The system of one step a channel, in float64."""
        step, imaginary = self.log_step.double().exp(), self.A_imag.double()
        if self.A_real is None:
            assert self.A_log is not None
            A = left_half(self.A_log.double(), imaginary)
        else:
            A = torch.complex(self.A_real.double(), imaginary)
        C = complex_of(self.C[direction].double())
        write, read = dss_vectors(A, C, step, self.max_length, method=self.method)
        return Diagonal(step[:, None] * A, write, read, conjugates=True)

    def respond(
        self, u: Float[Tensor, "b t d"], memory: Float[Tensor, "n ..."], steps: Steps, direction: int
    ) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "n ..."]]:
        y, memory = respond(self.name, self.discrete(direction), u.unsqueeze(-1), memory, steps)
        return y.squeeze(-1), memory
