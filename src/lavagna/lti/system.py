"""A linear system that does not change in time, with its two faces: a recurrence, and one long filter."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Shaped
from torch import Tensor

from lavagna.algebra.transition import scalar
from lavagna.autocast import without_autocast
from lavagna.dispatch import recur
from lavagna.forms.convolution import convolve
from lavagna.lti.discretize import METHODS, Discrete, discretize
from lavagna.lti.krylov import krylov
from lavagna.lti.log_decay import log_decay
from lavagna.lti.vandermonde import diagonal_kernel


class _Matrices(NamedTuple):
    """One step in the dtype of an answer: Ab (n n) or (n), Bb (n m), C (p n), D (p m)."""

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor


class Response(NamedTuple):
    """What a system answers, and the state that it is left in."""

    y: Tensor
    state: Tensor


@dataclass(frozen=True, eq=False, init=False, repr=False)
class System:
    """A linear system `x' = A x + B u`, `y = C x + D u`, run in steps of one size under a rule of `discretize`.

        x_t = Ab x_{t-1} + Bb u_t,     y_t = C x_t + D u_t          step by step, `step` and `recur`
        y = K * u + D u,     K_l = C Ab^l Bb                        at once, `kernel` and `convolve`

    `A` is dense (n n) or diagonal (n). `B` is (n) for one input or (n m) for m, `C` (n) for one output or (p n) for p;
    `D` a number (0 or None for none), a matrix (p m), or a vector: of p or m channels where the other is one, of both
    where they are as many. `step` is a number or a tensor without axes, and is kept as `step_size`. A signal is
    u (b t m), answered by y (b t p), or by y (b t) where C is (n); one input may come as u (b t), and then a single
    output goes as y (b t).

    All may be real or complex. Matrices are float32 at least; what is computed has the dtype that a product of `u` and
    the matrices has, inside `torch.autocast` too. Nothing is kept between calls: parameters that change, change the
    next call, and gradients flow to all of them, through the states too. Raises ValueError on shapes or options that
    don't fit.

    >>> tub = System(torch.tensor([0.5]).log(), torch.ones(1), torch.ones(1), method="mamba")
    >>> tub.kernel(4).tolist()
    [1.0, 0.5, 0.25, 0.125]
    >>> u = torch.randn(2, 9)
    >>> torch.allclose(tub.convolve(u), tub.recur(u).y, atol=1e-6)
    True
    """

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    step_size: Tensor | float
    method: str

    def __init__(
        self,
        A: Shaped[Tensor, "..."],
        B: Shaped[Tensor, "..."],
        C: Shaped[Tensor, "..."],
        D: Shaped[Tensor, "..."] | complex | None = None,
        step: Shaped[Tensor, ""] | float = 1.0,
        method: str = "zoh",
    ) -> None:
        dtype = torch.float32
        for x in (A, B, C, D):
            dtype = torch.promote_types(dtype, x.dtype) if isinstance(x, Tensor) else dtype
        dtype = torch.promote_types(dtype, torch.complex64) if isinstance(D, complex) else dtype
        named = {"A": A.to(dtype), "B": B.to(dtype), "C": C.to(dtype), "step_size": step, "method": method}
        for name, value in named.items():
            object.__setattr__(self, name, value)
        self._check()
        # No way past the state fits any number of inputs and outputs.
        none = D is None or (not isinstance(D, Tensor) and D == 0)
        passes = A.new_zeros(self.outputs, self.inputs, dtype=dtype) if none else torch.as_tensor(D, device=A.device)
        object.__setattr__(self, "D", self._fitting(passes.to(dtype)))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {tuple(getattr(self, name).shape)}" for name in "ABCD")
        return f"System({sizes}, step {_told(self.step_size)}, {self.method!r}, {self.A.dtype})"

    @property
    def inputs(self) -> int:
        """How many numbers enter at each step."""
        return 1 if self.B.ndim == 1 else self.B.shape[1]

    @property
    def outputs(self) -> int:
        """How many numbers leave at each step."""
        return 1 if self.C.ndim == 1 else self.C.shape[0]

    @property
    def dense(self) -> bool:
        """Whether `A` is a matrix, not a diagonal."""
        return self.A.ndim == 2

    def discrete(self) -> Discrete:
        """The matrices of one step, `Ab` (n n) or (n) and `Bb` with the axes of `B`."""
        Ab, Bb = self._discretized()
        return Discrete(Ab.to(self.A.dtype), Bb.to(self.A.dtype))

    def kernel(self, length: int) -> Shaped[Tensor, "... length"]:
        """The filter `K_l = C Ab^l Bb`, without D: (length), in front of it p where C is a matrix, and m where B is.

        Diagonal: `diagonal_kernel`, O(n length). Dense: Krylov doubling, O(n^3 log length + n^2 length).
        """
        with without_autocast(self.A):
            filters = self._filters(self._matrices(self.A.dtype), length)
        filters = filters.squeeze(1) if self.B.ndim == 1 else filters
        return filters.squeeze(0) if self.C.ndim == 1 else filters

    def convolve(self, u: Shaped[Tensor, "..."], state: Shaped[Tensor, "b n"] | None = None) -> Shaped[Tensor, "..."]:
        """The answer to a whole text at once, from the state (b n) before it, zeros where None."""
        single = u.ndim == 2
        u, state = self._given("convolve", u, state, axes=3)
        system, steps = self._matrices(u.dtype), u.shape[1]
        with without_autocast(self.A):
            y = convolve(u.mT.unsqueeze(1), self._filters(system, steps)).sum(2).mT
            if state is not None:
                y = y + self._free(system, state, steps)
            return self._channels(y + u @ system.D.mT, single)

    def recur(
        self, u: Shaped[Tensor, "..."], state: Shaped[Tensor, "b n"] | None = None, *, form: str = "auto"
    ) -> Response:
        """The answer to a text and the state (b n) after it, by the recurrence.

        A diagonal system runs in any form of `lavagna.recur`, one head a mode; a dense one step after step.
        """
        if self.dense and form not in ("auto", "recurrent"):
            raise ValueError(f"System.recur: form must be recurrent or auto for a dense A, but came as {form!r}.")
        single = u.ndim == 2
        u, state = self._given("recur", u, state, axes=3)
        system = self._matrices(u.dtype)
        with without_autocast(self.A):
            written = u @ system.B.mT
            before = written.new_zeros(written.shape[0], written.shape[2]) if state is None else state
            states, after = _fold(system.A, written, before) if self.dense else self._modes(written, before, form)
            return Response(self._channels(states @ system.C.mT + u @ system.D.mT, single), after)

    def step(self, u_t: Shaped[Tensor, "..."], state: Shaped[Tensor, "b n"] | None = None) -> Response:
        """The answer to one step, u_t (b) or (b m), and the state after it."""
        self._given("step", u_t, state, axes=2)
        y, after = self.recur(u_t.unsqueeze(1), state)
        return Response(y.squeeze(1), after)

    def _discretized(self) -> Discrete:
        """One step in double precision, so that what is rounded is a decay, not its logarithm."""
        A, B = (x.to(_double(x.dtype)) for x in (self.A, self.B))
        return discretize(A, B, self.step_size, self.method, structure="dense" if self.dense else "diagonal")

    def _matrices(self, dtype: torch.dtype) -> _Matrices:
        Ab, Bb = self._discretized()
        B = Bb.unsqueeze(-1) if Bb.ndim == 1 else Bb
        return _Matrices(*(x.to(dtype) for x in (Ab, B, torch.atleast_2d(self.C), self.D)))

    def _log_decay(self) -> Tensor:
        return log_decay(self.A.to(_double(self.A.dtype)) * self.step_size, self.method)

    def _filters(self, system: _Matrices, length: int) -> Tensor:
        """(p, m, length)."""
        if self.dense:
            return torch.einsum("pn,mln->pml", system.C, krylov(system.A, system.B.mT, length))
        weights = system.C[:, None] * system.B.mT
        return _own(diagonal_kernel(weights, self._log_decay(), length), weights.dtype)

    def _free(self, system: _Matrices, state: Tensor, steps: int) -> Tensor:
        """(b, steps, p): what a state answers when nothing more enters."""
        if self.dense:
            return krylov(system.A, state @ system.A.mT, steps) @ system.C.mT
        weights = system.C * (system.A * state)[:, None]
        return _own(diagonal_kernel(weights, self._log_decay(), steps), weights.dtype).mT

    def _modes(self, written: Tensor, state: Tensor, form: str) -> tuple[Tensor, Tensor]:
        """Every state (b t n) of a diagonal system and the last one: the recurrence with a head for each mode."""
        ones = written.new_ones(*written.shape[:2], 1, 1)
        a = scalar(self._log_decay()[None, None, :, None])
        found = recur(a, ones, ones, written[..., None], state[..., None, None], form=form)
        return _own(found.output[..., 0], written.dtype), _own(found.state[..., 0, 0], written.dtype)

    def _channels(self, y: Tensor, single: bool) -> Tensor:
        """(b t p), without the last axis where C is a vector, or where a single input had none either."""
        return y.squeeze(-1) if self.C.ndim == 1 or (single and self.outputs == 1) else y

    def _given(self, call: str, u: Tensor, state: Tensor | None, *, axes: int) -> tuple[Tensor, Tensor | None]:
        """The input with an axis of channels, and the state, in the answer's dtype; ValueError if they don't fit."""
        n, m = self.A.shape[-1], self.inputs
        single = m == 1 and u.ndim == axes - 1
        floating = u.is_floating_point() or u.is_complex()
        if not floating or not (single or (u.ndim == axes and u.shape[-1] == m)):
            time = "b t" if axes == 3 else "b"
            wanted = f"({time} {m})" + (f" or ({time})" if m == 1 else "")
            raise ValueError(
                f"System.{call}: u must be a floating tensor {wanted}, but came as {tuple(u.shape)} {u.dtype}."
            )
        if state is not None and tuple(state.shape) != (u.shape[0], n):
            raise ValueError(
                f"System.{call}: state must be (b n) = {(u.shape[0], n)}, but came as {tuple(state.shape)}."
            )
        dtype = torch.promote_types(self.A.dtype, u.dtype)
        dtype = dtype if state is None else torch.promote_types(dtype, state.dtype)
        return (u.unsqueeze(-1) if single else u).to(dtype), None if state is None else state.to(dtype)

    def _fitting(self, D: Tensor) -> Tensor:
        """`D` as a matrix (p m); ValueError if it is none."""
        p, m = self.outputs, self.inputs
        if D.shape == (p, m):
            return D
        if p == m and (D.ndim == 0 or D.shape == (m,)):
            return D * torch.eye(m, dtype=D.dtype, device=D.device)
        if min(p, m) > 1 or D.shape != (max(p, m),):
            raise ValueError(
                f"System: D must be a number where there are as many outputs as inputs, or (p m) = {(p, m)}, but came "
                f"as {tuple(D.shape)}."
            )
        return D.reshape(p, m)

    def _check(self) -> None:
        A, B, C = (tuple(x.shape) for x in (self.A, self.B, self.C))
        n = A[-1] if A else 0
        if A not in ((n,), (n, n)) or B[:1] != (n,) or C[-1:] != (n,) or len(B) > 2 or len(C) > 2:
            raise ValueError(
                f"System: A must be (n n) or (n), B (n) or (n m), C (n) or (p n), but came as {A}, {B}, {C}."
            )
        if self.method not in METHODS:
            raise ValueError(f"System: method must be one of {', '.join(METHODS)}, but came as {self.method!r}.")
        if isinstance(self.step_size, Tensor) and self.step_size.ndim:
            raise ValueError(f"System: step must be one number, but came as {tuple(self.step_size.shape)}.")


def _fold(Ab: Tensor, written: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Every state (b t n) of a dense system, one step after the other, and the last one."""
    states = []
    # Indexing inside the loop would make the backward pass quadratic in the steps.
    for write in written.unbind(1):
        state = torch.addmm(write, state, Ab.mT)
        states.append(state)
    return torch.stack(states, 1) if states else written, state.clone()


def _told(step: Tensor | float) -> str:
    """A step's size to be read; of a tensor that has no number, as on the meta device or inside `vmap`, that."""
    try:
        return f"{step.detach().item() if isinstance(step, Tensor) else step:g}"
    except RuntimeError:
        return "unknown"


def _double(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def _own(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Back to the dtype of the answer; a real one where a negative decay had made the powers complex."""
    return (x if dtype.is_complex or not x.is_complex() else x.real).to(dtype)
