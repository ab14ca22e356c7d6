"""Linear systems that don't change in time: HiPPO, discretization, kernels; float64 unless asked otherwise."""

from lavagna.lti.basis import basis
from lavagna.lti.cauchy import s4_kernel
from lavagna.lti.discretize import Discrete, Trapezoid, discretize, exponential_trapezoid
from lavagna.lti.dss import dss_kernel, dss_vectors, dss_weights
from lavagna.lti.exponential import expm, expm1, log_bilinear, phi1
from lavagna.lti.hippo import Hippo, hippo
from lavagna.lti.initial import Rates, left_half, rates, reset_log_steps, spectrum
from lavagna.lti.krylov import krylov
from lavagna.lti.log_decay import log_decay
from lavagna.lti.nplr import NPLR, nplr
from lavagna.lti.online import online_hippo, reconstruct
from lavagna.lti.system import Response, System
from lavagna.lti.vandermonde import diagonal_kernel, diagonal_state

__all__ = [
    "NPLR",
    "Discrete",
    "Hippo",
    "Rates",
    "Response",
    "System",
    "Trapezoid",
    "basis",
    "diagonal_kernel",
    "diagonal_state",
    "discretize",
    "dss_kernel",
    "dss_vectors",
    "dss_weights",
    "expm",
    "expm1",
    "exponential_trapezoid",
    "hippo",
    "krylov",
    "left_half",
    "log_bilinear",
    "log_decay",
    "nplr",
    "online_hippo",
    "phi1",
    "rates",
    "reconstruct",
    "reset_log_steps",
    "s4_kernel",
    "spectrum",
]
