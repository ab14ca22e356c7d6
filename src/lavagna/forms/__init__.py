"""How one product of affine maps is bracketed. A form never names a rule.

Every form has one signature, `form(a, q, k, v, state, *, read, chunk) -> (output, state)`, over full tensors
(b, t, h, ·) of one dtype with t >= 1 and a given state; `lavagna.recur` brings any legal call to that.
"""

from collections.abc import Callable

from torch import Tensor

from lavagna.forms.chunkwise import chunkwise
from lavagna.forms.parallel import parallel
from lavagna.forms.recurrent import recurrent
from lavagna.forms.scan import scan

FORMS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "recurrent": recurrent,
    "scan": scan,
    "chunkwise": chunkwise,
    "parallel": parallel,
}
