"""Continuous diagonal systems with learned parameters, one a head: the heart of S4D and of H3."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.lti.discretize import discretize
from lavagna.lti.initial import SPECTRA, left_half, rates, reset_log_steps, spectrum
from lavagna.lti.log_decay import log_decay
from lavagna.lti.nplr import nplr
from lavagna.modules.diagonal_response import Diagonal, respond
from lavagna.modules.options import choice, step_range, whole
from lavagna.modules.pairs import complex_of, pairs_of
from lavagna.modules.precision import Wide, wide_dtype
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt

DISCRETIZATIONS = ("zoh", "bilinear", "euler")


class DiagonalSSM(Wide):
    """A diagonal system a head, discretized at every call, so that it is never older than its parameters.

        x' = A x + B u          y = 2 Re C x          A = -exp(A_log) + i A_imag          step = exp(log_step)

    - d_state: real degrees of freedom, so d_state / 2 conjugate pairs, of which one mode each is stored; the spectrum
      "real" has d_state real modes, and then everything is real and y = C x.
    - init: the spectrum to start from, "legs", "inv", "lin" or "real" (`lavagna.lti.spectrum`).
    - discretization: "zoh", "bilinear" or "euler". Euler's decay 1 + step A is below one only for steps well below
      2 |Re A| / |A|^2; past that the system grows.
    - dt_min, dt_max: between them the first step sizes are log-uniform, one a head.
    - readouts: how many C there are, for systems that are read more than once.

    B starts as HiPPO's in the eigenvectors of "legs", else as 1; C is standard normal, complex with variance 1/2
    a part. All are learned. Gu, Gupta, Goel and Ré 2022, arXiv 2206.11893.
    """

    def __init__(
        self,
        call: str,
        heads: int,
        d_state: int,
        *,
        init: str,
        discretization: str,
        dt_min: float,
        dt_max: float,
        readouts: int = 1,
    ) -> None:
        super().__init__()
        self.call = call
        _check(call, d_state, init, discretization, dt_min, dt_max)
        self.init, self.discretization, self.range = init, discretization, (dt_min, dt_max)
        self.real = init == "real"
        self.modes = d_state if self.real else d_state // 2
        pair = () if self.real else (2,)
        self.log_step = nn.Parameter(torch.empty(heads))
        self.A_log = nn.Parameter(torch.empty(heads, self.modes))
        self.A_imag = None if self.real else nn.Parameter(torch.empty(heads, self.modes))
        self.B = nn.Parameter(torch.empty(heads, self.modes, *pair))
        self.C = nn.Parameter(torch.empty(readouts, heads, self.modes, *pair))

    def reset_parameters(self) -> None:
        """Set every parameter as the paper says."""
        reset_log_steps(self.log_step, low=self.range[0], high=self.range[1])
        if not self.log_step.is_meta:
            self._reset_spectrum()
            nn.init.normal_(self.C, std=1 if self.real else 0.5**0.5)
        exempt(*self.parameters())

    def _reset_spectrum(self) -> None:
        n = self.modes if self.real else 2 * self.modes
        # Whatever the default device is: on another, eigenvectors may come out turned.
        with torch.device("cpu"):
            Lambda = spectrum(self.init, n)
            B = nplr("legs", n)[2][: self.modes] if self.init == "legs" else torch.ones_like(Lambda)
        with torch.no_grad():
            self.A_log.copy_(rates(Lambda.to(torch.complex128)).log_rate)
            self.B.copy_(B if self.real else pairs_of(B))
            if self.A_imag is not None:
                self.A_imag.copy_(Lambda.imag)

    def initial_memory(
        self, batch: int, values: int, device: torch.device, dtype: torch.dtype
    ) -> Float[Tensor, "b h v k *pair"]:
        """The memory before the first step, zeros, for `values` inputs a head."""
        return torch.zeros(batch, len(self.A_log), values, *self.B.shape[1:], device=device, dtype=wide_dtype(dtype))

    def discrete(self, readout: int = 0) -> Diagonal:
        """The system of one step, in float64."""
        B, C = (x.double() if self.real else complex_of(x.double()) for x in (self.B, self.C[readout]))
        rate, step = self.A_log.double(), self.log_step.double().exp()
        A = -rate.exp() if self.A_imag is None else left_half(rate, self.A_imag.double())
        write = discretize(A, B, step, self.discretization, structure="diagonal").B
        decay = log_decay(step[:, None] * A, self.discretization)
        return Diagonal(decay, write, C, conjugates=not self.real)

    def forward(
        self, u: Float[Tensor, "b t h v"], memory: Float[Tensor, "n h v k *pair"], steps: Steps, readout: int = 0
    ) -> tuple[Float[Tensor, "b t h v"], Float[Tensor, "n h v k *pair"]]:
        """The answers of the heads to `v` inputs each, and the memories after the last step, in every form."""
        return respond(self.call, self.discrete(readout), u, memory, steps)

    def extra_repr(self) -> str:
        return f"{len(self.A_log)}, modes={self.modes}, init={self.init!r}, discretization={self.discretization!r}"


def _check(call: str, d_state: int, init: str, discretization: str, dt_min: float, dt_max: float) -> None:
    whole(call, "d_state", d_state)
    choice(call, "init", init, SPECTRA)
    choice(call, "discretization", discretization, DISCRETIZATIONS)
    if d_state % 2 and init != "real":
        raise ValueError(
            f"{call}: d_state must be even for conjugate pairs, but came as {d_state}. Use {d_state + 1}, or "
            "init='real'."
        )
    step_range(call, dt_min, dt_max)
