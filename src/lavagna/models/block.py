"""One block of a model: a sequence mixer and, where the paper has one, an MLP, each behind a norm and a residual."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from lavagna.layers import registry
from lavagna.layers.layer import Mixed
from lavagna.models.stack_config import StackConfig
from lavagna.modules.mlp import SwiGLU
from lavagna.modules.norm import RMSNorm
from lavagna.state import State

# Two matrices of 4 d have as many weights as the three of a SwiGLU of 8/3 d.
PAPER_FACTOR = 8 / 3


class Block(nn.Module):
    """A pre-norm residual block.

        x <- x + mixer(norm(x))          x <- x + mlp(norm(x))

    The second line only where the block has an MLP: see `mlp_width`. The state is the mixer's. In training mode
    `config.dropout` of the numbers of each branch are zero and the others larger for it.
    """

    def __init__(self, config: StackConfig, index: int) -> None:
        super().__init__()
        name, width = config.layers[index], mlp_width(config, index)
        options = config.layer_options(name)
        place = {"layer_index": index, "depth": config.depth}
        options |= {key: value for key, value in place.items() if key in registry.options(name) and key not in options}
        self.mixer_norm = RMSNorm(config.d_model, eps=config.norm_eps)
        self.mixer = registry.build(name, config.d_model, **options)
        self.mlp_norm = RMSNorm(config.d_model, eps=config.norm_eps) if width else None
        self.mlp = SwiGLU(config.d_model, hidden=width) if width else None
        self.dropout = config.dropout

    @property
    def residuals(self) -> int:
        """How many times the block adds to the residual stream."""
        return 1 if self.mlp is None else 2

    def reset_parameters(self, residuals: int) -> None:
        """Set every parameter as its part says, what is added to the stream smaller by sqrt(residuals).

        `residuals` counts the additions of the whole model, so that the stream's variance does not grow with depth.
        Layers that take `depth` do this by themselves. Source: Radford et al. 2019 (GPT-2), section 2.3.
        """
        for part in self.children():
            part.reset_parameters()  # pyright: ignore[reportCallIssue]
        last = [] if self.mlp is None else [self.mlp.down.weight]
        if "depth" not in registry.options(self.mixer.name):
            last.append(self.mixer.get_parameter("out.weight"))
        with torch.no_grad():
            for weight in last:
                weight /= residuals**0.5

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        state: State | None = None,
        *,
        mask: Shaped[Tensor, "b t"] | None = None,
        cu_seqlens: list[int] | None = None,
        form: str = "auto",
        backend: str = "auto",
    ) -> Mixed:
        """Mix and map a text given the state before it; return the text and the state after it."""
        y, after = self.mixer(self.mixer_norm(x), state, mask=mask, cu_seqlens=cu_seqlens, form=form, backend=backend)
        x = x + self._thinned(y)
        if self.mlp is not None and self.mlp_norm is not None:
            x = x + self._thinned(self.mlp(self.mlp_norm(x)))
        return Mixed(x, after)

    def _thinned(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout, self.training) if self.dropout else branch


def mlp_width(config: StackConfig, index: int) -> int:
    """Hidden width of one block's MLP, a multiple of 16; 0 for none."""
    paper = PAPER_FACTOR if registry.layer_class(config.layers[index]).has_mlp else 0
    factor = paper if config.mlp_factor is None else config.mlp_factor
    return -(-round(factor * config.d_model) // 16) * 16
