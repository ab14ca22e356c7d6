"""What S4 and its kin share: a linear system whose rule never changes, and the block around it."""

from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.autocast import without_autocast
from lavagna.forms import FORMS
from lavagna.layers.layer import Layer
from lavagna.modules.linear import OutLinear
from lavagna.modules.options import switch, whole
from lavagna.modules.precision import wide
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt
from lavagna.state import State


class TimeInvariant(Layer):
    """A layer whose memory follows the same linear rule at every step: a recurrence and a convolution at once.

        y_t = GLU(W_out GELU(x_t + D u_t)),          x = respond(u)

    A subclass says what the system answers (`respond`), in every form, and what its empty `memory` is
    (`initial_tensors`). Here are the skip D, the activation, the projection that mixes the channels, and the option

    - bidirectional: a second system, with its own readout C, reads the sequence from its end, and both answers are
      added; each includes the present step. Such a layer refuses a state and returns None for one.

    Everything before the projection is float32 at least, also under `torch.autocast`. D is standard normal.
    The block is S4's: Gu, Goel and Ré 2021, arXiv 2111.00396.
    """

    forms: ClassVar[tuple[str, ...]] = (*FORMS, "convolution")
    block_mlp = None

    def __init__(self, d_model: int, *, outputs: int = 1, bidirectional: bool = False) -> None:
        """`outputs`: how many numbers the system gives for each channel, side by side."""
        super().__init__(d_model)
        whole(self.name, "outputs", outputs)
        switch(self.name, "bidirectional", bidirectional)
        self.outputs, self.bidirectional = outputs, bidirectional
        self.D = nn.Parameter(torch.empty(d_model * outputs))
        self.out = OutLinear(d_model * outputs, 2 * d_model)

    @property
    def directions(self) -> int:
        """How many readouts C there are."""
        return 2 if self.bidirectional else 1

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if not self.D.is_meta:
            nn.init.normal_(self.D)
        exempt(self.D)

    @abstractmethod
    def respond(
        self, u: Float[Tensor, "b t d"], memory: Float[Tensor, "n ..."], steps: Steps, direction: int
    ) -> tuple[Float[Tensor, "b t c"], Float[Tensor, "n ..."]]:
        """The system's answer to each step, without the skip, and the memory after the last.

        `direction` 0 reads forward; 1, with the readout of its own, is given `u` turned around. c = d * outputs.
        """

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        # Autocast would take products of kernels to half precision.
        with without_autocast(x):
            u = wide(x)
            y, memory = self.respond(u, state.memory, steps, 0)
            if self.bidirectional:
                y = y + steps.reverse(self.respond(steps.reverse(u), state.memory, steps, 1)[0])
            skip = (u.unsqueeze(-1) * self.D.view(self.d_model, self.outputs)).flatten(2)
            hidden = F.gelu(y + skip)
        return F.glu(self.out(hidden, x.dtype), -1), {"memory": memory}
