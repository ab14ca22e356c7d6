"""LSSL: one linear system with a dense matrix, at a speed of its own for each channel."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lavagna.dispatch import CHUNK
from lavagna.forms.convolution import convolve
from lavagna.layers.time_invariant import TimeInvariant
from lavagna.lti.discretize import discretize
from lavagna.lti.hippo import KINDS, hippo
from lavagna.lti.initial import reset_log_steps
from lavagna.lti.krylov import doubled, raised, squares
from lavagna.modules.options import choice, step_range, switch, whole
from lavagna.modules.precision import wide_dtype
from lavagna.modules.steps import Steps
from lavagna.modules.weight_decay import exempt

INITS = (*KINDS, "random")
DISCRETIZATIONS = ("bilinear", "zoh", "euler", "backward_euler")


class Dense(NamedTuple):
    """A system of one step a channel, `x_t = A x_{t-1} + B u_t`, of which `y_t = C x_t` gives c numbers."""

    A: Float[Tensor, "d n n"]
    B: Float[Tensor, "d n"]
    C: Float[Tensor, "d c n"]


class LSSL(TimeInvariant):
    """Every channel is filtered by the same linear system, whose matrix is dense, at a step size of its own.

        x' = A x + B u,  y = C x          x_t = A_bar x_{t-1} + B_bar u_t,  A_bar (n, n) for each channel

    A dense transition is not one of `lavagna.recur`'s, which are diagonal plus one product of two vectors: the layer
    keeps its own loop, and a form of its own for each of their names, all with the numbers of the loop:

    - recurrent: one product of a matrix and a vector a step;
    - scan: x_t takes in A_bar^(2^i) x_(t - 2^i), for every i: log t passes over all states;
    - parallel: the filter C A_bar^l B_bar by doubling (`krylov`), applied as one triangle;
    - chunkwise: that for 64 steps at a time, and the state between;
    - convolution: that filter by transforms, the paper's way to train.

    The filter costs O(n^3 log t + n^2 t) a channel, memory O(n t + n^2 log t): what S4 was made to spare. Options:

    - d_state: n, 64.
    - init: A and B at the start, those of HiPPO ("legs", "legt", "lagt", "fout") or "random": normal with deviation 1/n
      and 1.
    - fixed: A stays what it was at the start; it is learned else. B is always learned.
    - channels: how many readouts C each channel has; W_out mixes them all.
    - discretization: "bilinear", "zoh", "euler" or "backward_euler", anew at every call, in float64.
    - dt_min, dt_max: between them the first step sizes are log-uniform.
    - bidirectional: read both ways, see `TimeInvariant`.

    State: `memory` (b, d, 1, d_state). HiPPO's systems decay; one that was learned, or drawn, may grow.
    Gu et al. 2021, arXiv 2110.13985; `StateSpace` of state-spaces/s4 (`lssl.py`).
    """

    name = "lssl"

    def __init__(
        self,
        d_model: int,
        *,
        d_state: int = 64,
        init: str = "legs",
        fixed: bool = False,
        channels: int = 1,
        discretization: str = "bilinear",
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        bidirectional: bool = False,
    ) -> None:
        whole(self.name, "channels", channels)
        super().__init__(d_model, outputs=channels, bidirectional=bidirectional)
        _check(self.name, d_state, init, discretization, dt_min, dt_max)
        switch(self.name, "fixed", fixed)
        self.init, self.discretization, self.range = init, discretization, (dt_min, dt_max)
        self.log_step = nn.Parameter(torch.empty(d_model))
        A = torch.empty(d_state, d_state)
        if fixed:
            self.register_buffer("A", A)
        else:
            self.A = nn.Parameter(A)
        self.B = nn.Parameter(torch.empty(d_state))
        self.C = nn.Parameter(torch.empty(self.directions, d_model, channels, d_state))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        reset_log_steps(self.log_step, low=self.range[0], high=self.range[1])
        if not self.B.is_meta:
            nn.init.normal_(self.C)
            self._reset_system()
        exempt(self.log_step, self.B, self.C, *(x for x in (self.A,) if isinstance(x, nn.Parameter)))

    def _reset_system(self) -> None:
        n = len(self.B)
        # Whatever the default device is.
        with torch.no_grad(), torch.device("cpu"):
            if self.init == "random":
                self.A.normal_(std=1 / n)
                self.B.normal_()
            else:
                for own, value in zip((self.A, self.B), hippo(self.init, n), strict=True):
                    own.copy_(value)

    def initial_tensors(self, batch: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        shape = batch, self.d_model, 1, len(self.B)
        return {"memory": torch.zeros(shape, device=device, dtype=wide_dtype(dtype))}

    def system(self, direction: int = 0) -> Dense:
        """The steps of all channels as the parameters now are, read by the C of a direction."""
        A, B, step = self.A.double(), self.B.double(), self.log_step.double().exp()
        A_bar, B_bar = discretize(A, B, step, self.discretization, structure="dense")
        dtype = wide_dtype(self.B.dtype)
        return Dense(A_bar.to(dtype), B_bar.to(dtype), self.C[direction].to(dtype))

    def respond(
        self, u: Float[Tensor, "b t d"], memory: Float[Tensor, "n ..."], steps: Steps, direction: int
    ) -> tuple[Float[Tensor, "b t c"], Float[Tensor, "n ..."]]:
        steps.need_torch(self.name)
        form = steps.form if steps.form != "auto" else "convolution" if steps.convolves(self.name) else "recurrent"
        system, run = self.system(direction), RUNS[form]

        def rows(u: Tensor, counts: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
            if not u.numel():
                return u.new_zeros(*u.shape, self.outputs), start.clone()
            # All rows of a channel meet its matrix at once: states (d, m, n), inputs (d, m, l).
            given = None if steps.rows is None else counts
            y, last = run(system, u.permute(2, 0, 1), given, start.squeeze(2).transpose(0, 1), steps.fresh)
            return y.permute(1, 3, 0, 2), last.transpose(0, 1).unsqueeze(2)

        y, last = steps.by_rows(rows, u, memory.to(u.dtype))
        return y.flatten(2), last


def _recurrent(
    system: Dense, u: Tensor, counts: Tensor | None, state: Tensor, fresh: bool
) -> tuple[Float[Tensor, "d m c l"], Tensor]:
    """One step after the other; rows (d, m, l), of which the first `counts` are real."""
    A, B, C = system
    read = []
    for t, now in enumerate(u.unbind(-1)):
        after = state @ A.mT + now.unsqueeze(-1) * B.unsqueeze(1)
        state = after if counts is None else torch.where((t < counts)[:, None], after, state)
        read.append(state @ C.mT)
    return torch.stack(read, -1), state


def _scan(
    system: Dense, u: Tensor, counts: Tensor | None, state: Tensor, fresh: bool
) -> tuple[Float[Tensor, "d m c l"], Tensor]:
    """All states at once: after pass i each has taken in the 2^i - 1 before it."""
    A, B, C = system
    length = u.shape[-1]
    writes = u.unsqueeze(-1) * B[:, None, None]
    first = writes[:, :, :1] + (state @ A.mT).unsqueeze(2)
    states = torch.cat([first, writes[:, :, 1:]], 2)
    for i, power in enumerate(squares(A, length)):
        met = states[:, :, : -(2**i)] @ power.mT.unsqueeze(1)
        states = torch.cat([states[:, :, : 2**i], states[:, :, 2**i :] + met], 2)
    last = states[:, :, -1]
    if counts is not None:
        place = (counts - 1).clamp_min(0)[None, :, None, None].expand(*states.shape[:2], 1, states.shape[-1])
        last = torch.where((counts > 0)[:, None], states.gather(2, place).squeeze(2), state)
    return (states @ C.mT.unsqueeze(1)).mT, last


class _Filter(NamedTuple):
    """What a run of steps needs of a system: its squares, its states `A^l B`, readers `C A^(l+1)`, and kernel."""

    powers: list[Tensor]
    states: Float[Tensor, "d l n"]
    readers: Float[Tensor, "d c l n"] | None
    kernel: Float[Tensor, "d c l"]


def _filter(system: Dense, length: int, fresh: bool) -> _Filter:
    A, B, C = system
    powers = squares(A, length if fresh else length + 1)
    states = doubled(powers, B, length)
    readers = None if fresh else doubled([power.mT.unsqueeze(1) for power in powers], C @ A, length)
    return _Filter(powers, states, readers, C @ states.mT)


def _filtered(
    own: _Filter, u: Tensor, counts: Tensor | None, state: Tensor, method: str
) -> tuple[Float[Tensor, "d m c l"], Tensor]:
    """The filter's convolution with the rows, and what the state says and becomes by itself."""
    length = u.shape[-1]
    y = convolve(u.unsqueeze(2), own.kernel[:, None, :, :length], method=method)
    last = _last_first(u, counts) @ own.states[:, :length]
    if own.readers is not None:
        y = y + torch.einsum("dcln,dmn->dmcl", own.readers[:, :, :length], state)
        last = last + raised(own.powers, state, length if counts is None else counts)
    return y, last


def _last_first(u: Tensor, counts: Tensor | None) -> Tensor:
    """Each row's real steps from the last to the first, zeros behind."""
    if counts is None:
        return u.flip(-1)
    place = counts[:, None] - 1 - torch.arange(u.shape[-1], device=u.device)
    return u.gather(-1, place.clamp_min(0).expand_as(u)).masked_fill(place < 0, 0)


def _whole(method: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def run(
        system: Dense, u: Tensor, counts: Tensor | None, state: Tensor, fresh: bool
    ) -> tuple[Float[Tensor, "d m c l"], Tensor]:
        return _filtered(_filter(system, u.shape[-1], fresh), u, counts, state, method)

    return run


def _chunkwise(
    system: Dense, u: Tensor, counts: Tensor | None, state: Tensor, fresh: bool
) -> tuple[Float[Tensor, "d m c l"], Tensor]:
    """A filter for one chunk, and the state carried from chunk to chunk."""
    own, read = _filter(system, min(CHUNK, u.shape[-1]), fresh=False), []
    for i, chunk in enumerate(u.split(CHUNK, -1)):
        rest = None if counts is None else (counts - i * CHUNK).clamp(0, chunk.shape[-1])
        y, state = _filtered(own, chunk, rest, state, "direct")
        read.append(y)
    return torch.cat(read, -1), state


RUNS = {
    "recurrent": _recurrent,
    "scan": _scan,
    "chunkwise": _chunkwise,
    "parallel": _whole("direct"),
    "convolution": _whole("auto"),
}


def _check(call: str, d_state: int, init: str, discretization: str, dt_min: float, dt_max: float) -> None:
    whole(call, "d_state", d_state)
    choice(call, "init", init, INITS)
    choice(call, "discretization", discretization, DISCRETIZATIONS)
    if init == "fout" and d_state % 2:
        raise ValueError(f"{call}: init 'fout' needs an even d_state, but it came as {d_state}. Use {d_state + 1}.")
    step_range(call, dt_min, dt_max)
