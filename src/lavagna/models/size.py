"""What a model costs: parameters, arithmetic a token, memory of the state. Nothing is allocated to tell."""

import math

import torch
from torch import nn

from lavagna.models.config import ModelConfig
from lavagna.models.kinds import outline
from lavagna.models.stack import Stack
from lavagna.models.stack_config import StackConfig


def parameters(model: StackConfig | Stack) -> int:
    """How many parameters there are, a tied matrix counted once. Exact."""
    return sum(weight.numel() for weight in _empty(model).parameters())


def state_bytes(model: StackConfig | Stack, tokens: int = 1, *, dtype: torch.dtype = torch.float32) -> int:
    """Bytes of the state of one sequence after `tokens` tokens. Exact; a memory of fixed size has the same after any.

    `dtype` is that of the weights, which windows and caches have too. A model that reads in both directions has no
    state: 0.

    >>> config = ModelConfig(layer="gla", d_model=64, depth=2, vocab_size=256)
    >>> state_bytes(config, 10) == state_bytes(config, 10_000)
    True
    """
    return sum(math.prod(shape) * x.element_size() for x, shape, _ in _tensors(_empty(model), tokens, dtype))


def kv_cache_bytes(model: StackConfig | Stack, tokens: int, *, dtype: torch.dtype = torch.float32) -> int:
    """Bytes that a transformer of the same width and depth keeps after `tokens` tokens, to hold a state against.

        2 (keys and values) * depth * d_model * tokens * bytes of a number

    With as many heads for keys as for queries; heads that share keys divide it.
    """
    config = model if isinstance(model, StackConfig) else model.config
    return 2 * config.depth * config.d_model * tokens * dtype.itemsize


def flops(model: StackConfig | Stack, tokens: int = 1) -> int:
    """Floating-point operations of a forward step for one token, the `tokens`-th of its text.

        2 per weight of every matrix and convolution, the embedding only where it is the head too
        + 4 per number of a memory of fixed size (2 to write, 2 to read), 2 per number of a growing one and head that
        reads it

    Left out: norms, activations, gates, decaying and correcting the memory; a classifier's head, which works once a
    sequence; and the memory of what reads in both directions. A backward pass costs twice as much again.
    """
    empty = _empty(model)
    weights = _multiplied(empty)
    held = [each for each in _tensors(empty, tokens, torch.float32) if each[0].dtype != torch.int64]
    return 2 * weights + sum(math.prod(shape) * (2 * readers if 0 in x.shape else 4) for x, shape, readers in held)


def multiplied(model: StackConfig | Stack) -> int:
    """Weights of matrices and convolutions that every token is multiplied with: no embedding, but the head."""
    return _multiplied(_empty(model))


def _multiplied(empty: Stack) -> int:
    matrices = {id(weight): weight.numel() for weight in empty.parameters() if weight.ndim >= 2}
    return sum(matrices.values()) - sum(matrices[id(weight)] for weight in _idle(empty))


def _idle(empty: Stack) -> list[torch.Tensor]:
    """Matrices that don't work at a step: embeddings, which are looked up, and a head that works at the end."""
    tied = isinstance(empty.config, ModelConfig) and empty.config.tie_embeddings
    idle: list[torch.Tensor] = [m.weight for m in empty.children() if isinstance(m, nn.Embedding) and not tied]
    return idle if isinstance(empty.config, ModelConfig) else [*idle, empty.get_parameter("head.weight")]


def _empty(model: StackConfig | Stack) -> Stack:
    return outline(model if isinstance(model, StackConfig) else model.config)


def _tensors(empty: Stack, tokens: int, dtype: torch.dtype) -> list[tuple[torch.Tensor, list[int], int]]:
    """The tensors of the empty state of one sequence, each with its shape after `tokens` tokens and its readers."""
    if empty.first_bidirectional is not None:
        return []
    limits = [(block.mixer.longest, block.mixer.readers) for block in empty.each_block]
    # Behind the blocks a classifier keeps what it has pooled.
    return [
        (x, _shape(x, tokens if longest is None else min(tokens, longest)), readers)
        for state, (longest, readers) in zip(empty.initial_state(1, dtype=dtype), [*limits, (None, 1)], strict=False)
        for x in state.tensors().values()
    ]


def _shape(tensor: torch.Tensor, tokens: int) -> list[int]:
    # An axis that is empty before the first token is the one that holds the tokens.
    return [tokens if axis == 0 else axis for axis in tensor.shape]
