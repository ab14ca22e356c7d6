"""S4D: one diagonal linear system a channel, with a spectrum taken from HiPPO."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.layers.time_invariant import TimeInvariant
from lavagna.modules.diagonal_ssm import DiagonalSSM
from lavagna.modules.steps import Steps


class S4D(TimeInvariant):
    """Every channel is filtered by a linear system of its own, whose matrix is diagonal.

        x_t = exp(step A) x_{t-1} + Bb u_t          y_t = GLU(W_out GELU(2 Re C x_t + D u_t))

    so that a text can also be convolved with the kernel `K_l = 2 Re sum_n C_n Bb_n exp(l step A_n)`, at a cost of
    O(t log t + d_state t) a channel. Options:

    - d_state, init, discretization, dt_min, dt_max: the system's, see `DiagonalSSM`.
    - bidirectional: read both ways, see `TimeInvariant`.

    State: `memory` (b, d, 1, d_state / 2, 2), complex numbers as pairs; (b, d, 1, d_state) for init="real". Its size
    does not depend on the lengths of texts, and neither does anything learned: train at one length, go on at another.
    Gu, Gupta, Goel and Ré 2022, arXiv 2206.11893; `S4D` of state-spaces/s4.
    """

    name = "s4d"

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        init: str = "legs",
        discretization: str = "zoh",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(d_model, bidirectional=bidirectional)
        self.system = DiagonalSSM(
            self.name,
            d_model,
            d_state,
            init=init,
            discretization=discretization,
            dt_min=dt_min,
            dt_max=dt_max,
            readouts=self.directions,
        )
        self.reset_parameters()

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"memory": self.system.initial_memory(batch, 1, device, dtype)}

    def respond(
        self, u: Float[Tensor, "b t d"], memory: Float[Tensor, "n ..."], steps: Steps, direction: int
    ) -> tuple[Float[Tensor, "b t d"], Float[Tensor, "n ..."]]:
        y, memory = self.system(u.unsqueeze(-1), memory, steps, direction)
        return y.squeeze(-1), memory
