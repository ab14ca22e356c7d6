"""The selective scan: every channel a diagonal system of its own, in steps that the token decides."""

from jaxtyping import Float
from torch import Tensor

from lavagna.algebra.transition import diagonal
from lavagna.modules.steps import Steps


def selective_scan(
    x: Float[Tensor, "b t c"],
    dt: Float[Tensor, "b t c"],
    A: Float[Tensor, "c n"],
    B: Float[Tensor, "b t n"],
    C: Float[Tensor, "b t n"],
    D: Float[Tensor, " c"],
    memory: Float[Tensor, "m c 1 n"],
    steps: Steps,
) -> tuple[Float[Tensor, "b t c"], Float[Tensor, "m c 1 n"]]:
    """Reads, in the dtype of B and C, and the memory after the last step:

        h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t          y_t = C_t . h_t + D x_t          A <= 0, dt >= 0

    The decay is the zero-order hold of A, the write its first order. In one pass where there is a kernel for it and no
    form was asked for; else a head a channel, with one value, the key B and the query C.

    Gu and Dao 2023, arXiv 2312.00752, section 3.
    """
    scan = steps.fused("selective_scan", C, B, x)
    if scan is not None:
        y, memory = scan(x, dt, A, B, C, D, memory, real=steps.mask, offsets=steps.offsets)
        return y, memory
    a = diagonal(A[None, None], step=dt.unsqueeze(-1))
    v = (dt * x).to(B.dtype).unsqueeze(-1)
    y, memory = steps.recur(a, C.unsqueeze(2), B.unsqueeze(2), v, memory)
    return y.squeeze(-1) + (D * x).to(y.dtype), memory
