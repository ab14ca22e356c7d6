"""One block of a model: a sequence mixer and a feed-forward net, each with a norm and a residual."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from lavagna.layers import registry
from lavagna.models.stack_config import StackConfig
from lavagna.models.surroundings import surroundings
from lavagna.modules.feed_forward import FeedForward, build
from lavagna.modules.norm import NORMS
from lavagna.modules.steps import Steps
from lavagna.state import State

# What a feed-forward net remembers stands in the block's state under its name with this before it.
MLP = "mlp_"


class Passed(NamedTuple):
    """What a block returns: the stream, the block's state, and what its mixer hands on to later ones of its kind."""

    x: Float[Tensor, "b t d"]
    state: State | None
    handed: Tensor | None


class Block(nn.Module):
    """A residual block.

        x <- x + mixer(norm(x))          x <- x + mlp(norm(x))

    With norms "post" it is x + norm(mixer(x)) and x + norm(mlp(x)). The second line only where the block has a
    feed-forward net: see `surroundings`. The state is the mixer's and, where the net remembers something (RWKV's
    channel mix), the net's. In training mode `config.dropout` of the numbers of each branch are zero and the others
    larger for it.
    """

    def __init__(self, config: StackConfig, index: int) -> None:
        super().__init__()
        name, options = config.layers[index], config.layer_options(config.layers[index])
        place = {"layer_index": index, "depth": config.depth, "value_residual": name in config.layers[:index]}
        options |= {key: value for key, value in place.items() if key in registry.options(name) and key not in options}
        mixer = registry.build(name, config.d_model, **options)
        around = surroundings(mixer, config.mlp_factor, config.block_choices(name))
        norm = NORMS[around.norm]
        self.mixer_norm = norm(config.d_model, eps=config.norm_eps)
        self.mixer = mixer
        self.mlp_norm = norm(config.d_model, eps=config.norm_eps) if around.mlp else None
        self.mlp: FeedForward | None = None
        if around.mlp:
            self.mlp = build(around.mlp, config.d_model, around.mlp_width, layer_index=index, depth=config.depth)
        self.around, self.dropout = around, config.dropout
        remembered = {} if self.mlp is None else self.mlp.initial_tensors(0, torch.device("meta"), torch.float32)
        self.remembered = {MLP + name: tuple(tensor.shape[1:]) for name, tensor in remembered.items()}

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
        last = [] if self.mlp is None or self.mlp.last is None else [self.mlp.last]
        if "depth" not in registry.options(self.mixer.name):
            last.append(self.mixer.get_parameter("out.weight"))
        with torch.no_grad():
            for weight in last:
                weight /= residuals**0.5

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> State:
        """The state before the first token, for `batch` sequences."""
        state = self.mixer.initial_state(batch, device=device, dtype=dtype)
        if self.mlp is None:
            return state
        own = self.mlp.initial_tensors(batch, state.tokens_seen.device, dtype or self.mixer.dtype)
        return State(state.kind, state.tensors() | {MLP + name: tensor for name, tensor in own.items()})

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        state: State | None = None,
        handed: Tensor | None = None,
        *,
        mask: Shaped[Tensor, "b t"] | None = None,
        cu_seqlens: list[int] | None = None,
        form: str = "auto",
        backend: str = "auto",
    ) -> Passed:
        """Mix and map a text given the state before it and what an earlier block handed on."""
        options = {"mask": mask, "cu_seqlens": cu_seqlens, "form": form, "backend": backend}
        mine, theirs = self._apart(state)
        y = self._before(self.mixer_norm, x)
        if self.mixer.hands_on:
            (y, after), handed = self.mixer.hand_on(y, mine, handed, **options)
        else:
            y, after = self.mixer(y, mine, **options)
        x = x + self._thinned(self._behind(self.mixer_norm, y))
        if self.mlp is None:
            return Passed(x, after, handed)
        steps = Steps(self.mixer.name, x, mask=mask, cu_seqlens=cu_seqlens)
        if theirs is None:
            theirs = self.mlp.initial_tensors(steps.sequences, x.device, x.dtype)
        y, tensors = self.mlp(self._before(self.mlp_norm, x), theirs, steps)
        x = x + self._thinned(self._behind(self.mlp_norm, y))
        if after is not None and tensors:
            after = State(after.kind, after.tensors() | {MLP + name: one.contiguous() for name, one in tensors.items()})
        return Passed(x, after, handed)

    def _apart(self, state: State | None) -> tuple[State | None, dict[str, Tensor] | None]:
        """The mixer's part of the state and the feed-forward net's."""
        if not self.remembered or not isinstance(state, State):
            return state, None
        tensors = state.tensors()
        theirs = {name: tensor for name, tensor in tensors.items() if name.startswith(MLP)}
        axes = {name: tuple(tensor.shape[1:]) for name, tensor in theirs.items()}
        if axes != self.remembered:
            raise ValueError(
                f"{self.mixer.name}: for its feed-forward net the state of this block has, behind the rows, "
                f"{self.remembered}, but came with {axes}. Pass what this model returned, or None to start."
            )
        mine = {name: tensor for name, tensor in tensors.items() if name not in theirs}
        return State(state.kind, mine), {name.removeprefix(MLP): tensor for name, tensor in theirs.items()}

    def _before(self, norm: nn.Module | None, x: Tensor) -> Tensor:
        return norm(x) if norm is not None and self.around.norm_place == "pre" else x

    def _behind(self, norm: nn.Module | None, y: Tensor) -> Tensor:
        return norm(y) if norm is not None and self.around.norm_place == "post" else y

    def _thinned(self, branch: Tensor) -> Tensor:
        return F.dropout(branch, self.dropout, self.training) if self.dropout else branch
