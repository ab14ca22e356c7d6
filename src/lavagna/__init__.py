"""Every sequence model with a fixed-size memory as one recurrence, `S_t = S_{t-1} A_t + v_t k_t^T`, in every form."""

from lavagna.algebra.transition import (
    Transition,
    diagonal,
    dplr,
    gated_householder,
    householder,
    identity,
    scalar,
)
from lavagna.dispatch import Result, recur
from lavagna.state import ModelState, State, load_state
from lavagna.version import __version__

__all__ = [
    "ModelState",
    "Result",
    "State",
    "Transition",
    "__version__",
    "diagonal",
    "dplr",
    "gated_householder",
    "householder",
    "identity",
    "load_state",
    "recur",
    "scalar",
]
