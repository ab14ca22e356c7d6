"""Long short-term memory: the gated recurrent network that came before all others here, as a baseline."""

from contextlib import nullcontext
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lavagna.autocast import without_autocast
from lavagna.layers.layer import Layer
from lavagna.modules.heads import expanded
from lavagna.modules.linear import Linear
from lavagna.modules.precision import wide, wide_dtype
from lavagna.modules.steps import Steps
from lavagna.state import State

# Up to this many steps, torch's cell in a loop costs less than preparing its fused loop.
FEW = 3
# What a gate is given to be 0 or 1 exactly.
SURE = 1e4


class LSTM(Layer):
    """A cell of numbers that gates keep, write and show; the gates look at what was shown one step before.

        i_t, f_t, g_t, o_t = W x_t + R h_{t-1} + b          (sigmoid of i, f, o; tanh of g)
        c_t = f_t c_{t-1} + i_t g_t          h_t = o_t tanh(c_t)          y_t = W_out h_t

    What is shown enters the gates, so a step is no affine map of the state and steps don't compose: the only form is
    "recurrent", and the layer keeps a loop of its own, torch's. It is in float32 at least, for bfloat16 weights and
    under autocast too. O(t (d + width) width) time, one step after the other; `torch.compile` unrolls the loop.

    - expand: width of the cell over d_model, 1.

    State: `hidden`, `cell` (b, width). Weights are uniform within +-d_in^-1/2; biases are 0, the forget gate's 1.
    Hochreiter and Schmidhuber 1997; the forget gate: Gers, Schmidhuber and Cummins 2000; its bias: Jozefowicz,
    Zaremba and Sutskever 2015. `torch.nn.LSTM` with one layer, whose gates come in the same order.
    """

    name = "lstm"
    forms = ("recurrent",)
    block_mlp = None

    def __init__(self, d_model: int, *, expand: float = 1) -> None:
        super().__init__(d_model)
        self.width = expanded(self.name, "d_model", d_model, expand)
        self.gates = Linear(d_model, 4 * self.width, bias=True)
        self.recurrent = Linear(self.width, 4 * self.width)
        # torch's loop reads their weights.
        self.gates.quantizable = self.recurrent.quantizable = False
        self.out = Linear(self.width, d_model)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        assert self.gates.bias is not None
        nn.init.ones_(self.gates.bias.detach()[self.width : 2 * self.width])

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        cell = torch.zeros(batch, self.width, device=device, dtype=wide_dtype(dtype))
        return {"hidden": cell, "cell": cell.clone()}

    def mix(self, x: Float[Tensor, "b t d"], state: State, steps: Steps) -> tuple[Tensor, dict[str, Tensor]]:
        steps.need_torch(self.name)
        run = partial(self._run, ragged=steps.rows is not None)
        # Without cuDNN, which rounds to TF32 and wants all weights in one piece of memory.
        cudnn = x.is_cuda and not torch.compiler.is_compiling()
        without = torch.backends.cudnn.flags(enabled=False) if cudnn else nullcontext()
        with without_autocast(x), without:
            h, hidden, cell = steps.by_rows(run, x, state.hidden, state.cell)
        return self.out(h.to(x.dtype)), {"hidden": hidden, "cell": cell}

    def _run(
        self,
        x: Float[Tensor, "n l d"],
        counts: Int[Tensor, " n"],
        hidden: Float[Tensor, "n w"],
        cell: Float[Tensor, "n w"],
        *,
        ragged: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What is shown at each step, and each row's hidden and cell after its last real step."""
        x = wide(x)
        hidden, cell = hidden.to(x.dtype), cell.to(x.dtype)
        start = hidden
        assert self.gates.bias is not None
        weight, bias = wide(self.gates.weight), wide(self.gates.bias)
        if ragged:
            # Behind a row's last step one more input shuts the input gate and opens the forget gate: the cell stays.
            behind = torch.arange(x.shape[1], device=x.device) >= counts[:, None]
            held = torch.tensor([-SURE, SURE, 0, 0], dtype=x.dtype, device=x.device).repeat_interleave(self.width)
            x, weight = torch.cat([x, behind[:, :, None].to(x.dtype)], -1), torch.cat([weight, held[:, None]], 1)
        weights = [weight, wide(self.recurrent.weight), bias, torch.zeros_like(bias)]
        if x.shape[1] <= FEW or not len(x):
            shown, cell = _by_cells(x, hidden, cell * 1, weights)
        else:
            shown, _, cell = torch.lstm(x, (hidden[None], cell[None]), weights, True, 1, 0.0, True, False, True)
            cell = cell[0]
        last = counts[:, None, None].expand(-1, 1, self.width)
        return shown, torch.cat([start[:, None], shown], 1).gather(1, last).squeeze(1), cell


def _by_cells(x: Tensor, hidden: Tensor, cell: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor]:
    shown = [hidden[:, None, :][:, :0]]
    for given in x.unbind(1):
        hidden, cell = torch.lstm_cell(given, (hidden, cell), *weights)
        shown.append(hidden[:, None])
    return torch.cat(shown, 1), cell
