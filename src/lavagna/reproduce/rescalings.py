"""Rescalings: what RetNet divides its reads by, and whether all forms divide by the same."""

import torch
from jaxtyping import Float
from torch import Tensor

from lavagna.layers import build
from lavagna.layers.retention import RESCALES, Retention
from lavagna.modules import rotary
from lavagna.reproduce.row import Row, unprinted

TITLE = (
    "RetNet's forms agree here for any eps of its norm, with its rescalings and without; in the published order a chunk"
    " divides by its own sums, and its reads are others as far as eps lets them."
)
SOURCE = "Sun et al. 2023, arXiv 2307.08621, whose scores are rescaled thrice; the order of chunks is torchscale's."

WIDTH, HEADS, STEPS, CHUNK = 64, 4, 48, 16
# The least that the published order is off by, over the largest output: without an eps nothing.
LEAST = {1e-5: 0.05, 1e-6: 0.01, 0.0: 0.0}


def queries_keys_values(
    layer: Retention, x: Float[Tensor, "t d"]
) -> tuple[Float[Tensor, "h t k"], Float[Tensor, "h t k"], Float[Tensor, "h t v"]]:
    """What each head of a layer reads and writes with, turned and scaled by the root of its width."""
    q, k, v, _ = layer.qkvg(x).split(layer.sizes, -1)
    at, exponents = torch.arange(len(x))[None], rotary.closed(layer.keys.size)
    q, k = (
        rotary.rotate(z.unflatten(-1, layer.keys)[None], at, exponents, pairs="interleaved")[0].transpose(0, 1)
        for z in (q * layer.keys.size**-0.5, k)
    )
    return q, k, v.unflatten(-1, layer.values).transpose(0, 1)


def decays(log_gamma: Float[Tensor, " h"], steps: int) -> Float[Tensor, "h t t"]:
    """`gamma^(i - j)` where j is at or before i."""
    gaps = torch.arange(steps)[:, None] - torch.arange(steps)
    return torch.tril(torch.exp(gaps * log_gamma[:, None, None]))


def parallel(
    q: Float[Tensor, "h t k"], k: Float[Tensor, "h t k"], v: Float[Tensor, "h t v"], log_gamma: Float[Tensor, " h"]
) -> Float[Tensor, "h t v"]:
    """All pairs at once, as the paper has it: decays over the root of their sum, scores over |their sum| or 1."""
    mask = decays(log_gamma, q.shape[1])
    scores = (q @ k.mT) * mask / mask.sum(-1, keepdim=True).sqrt()
    return scores / scores.sum(-1, keepdim=True).abs().clamp_min(1) @ v


def in_chunks(
    q: Float[Tensor, "h t k"],
    k: Float[Tensor, "h t k"],
    v: Float[Tensor, "h t v"],
    log_gamma: Float[Tensor, " h"],
    chunk: int,
) -> Float[Tensor, "h t v"]:
    """Chunk after chunk in the published order: decays sum up anew in each, and sums of its scores or of the memory
    that it found, whichever are larger, divide a row."""
    mask, at = decays(log_gamma, chunk), torch.arange(1, chunk + 1)
    root, last = mask.sum(-1, keepdim=True).sqrt(), mask[:, -1:].mT
    memory, scale, out = q.new_zeros(len(q), q.shape[-1], v.shape[-1]), q.new_ones(len(q), 1, 1), []
    for q_c, k_c, v_c in zip(*(z.split(chunk, 1) for z in (q, k, v)), strict=True):
        scores = (q_c @ k_c.mT) * mask / root
        inner = scores.abs().sum(-1, keepdim=True).clamp_min(1)
        fade = torch.exp(at * log_gamma[:, None])[..., None] * last.sum(1, keepdim=True) / root
        larger = torch.maximum(inner, scale)
        out.append((scores / inner @ v_c) * (inner / larger) + (fade * q_c @ (memory / scale)) * (scale / larger))
        memory = memory * torch.exp(chunk * log_gamma)[:, None, None] + k_c.mT @ (
            v_c * last / last.sum(1, keepdim=True)
        )
        scale = memory.abs().sum(-2, keepdim=True).amax(-1, keepdim=True).clamp_min(1)
    return torch.cat(out, 1)


def finished(layer: Retention, x: Float[Tensor, "t d"], reads: Float[Tensor, "h t v"]) -> Float[Tensor, "t d"]:
    """Norm, gate and output map of a layer."""
    gate = layer.qkvg(x).split(layer.sizes, -1)[-1].unflatten(-1, layer.values)
    return layer.out(layer.norm(reads.transpose(0, 1), gate).flatten(1))


@torch.no_grad()
def rows(*, seed: int = 0) -> list[Row]:
    """Differences over the largest output, for three eps: of our forms, and of the published order from all at once."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        plain = build("retention", WIDTH, heads=HEADS).double().state_dict()
        x = torch.randn(STEPS, WIDTH, dtype=torch.float64)
    out = []
    for eps, least in LEAST.items():
        found = {}
        for rescale in RESCALES:
            layer = _layer(plain, rescale, eps)
            reads = {form: layer(x[None], form=form).y[0] for form in layer.forms}
            found[rescale] = max(_apart(y, reads["recurrent"]) for y in reads.values())
            name = f"eps {eps:g}, rescale {rescale!r}: our forms differ by"
            out.append(unprinted("rescalings", name, 0.0, found[rescale], within=1e-12))
        layer = _layer(plain, "paper", eps)
        given = (*queries_keys_values(layer, x), layer.log_gamma())
        right = finished(layer, x, parallel(*given))
        ours = _apart(layer(x[None], form="chunkwise").y[0], right)
        out.append(
            unprinted("rescalings", f"eps {eps:g}: ours in chunks, the paper's all at once", 0, ours, within=1e-12)
        )
        theirs = _apart(finished(layer, x, in_chunks(*given, CHUNK)), right)
        holds = theirs > least if least else theirs < 1e-12
        bar = f"above {least:g}" if least else "below 1e-12"
        name = f"eps {eps:g}: published order, chunks of {CHUNK} less all at once ({bar})"
        out.append(Row("rescalings", name, None, theirs, holds))
    return out


def _layer(weights: dict[str, Tensor], rescale: str, eps: float) -> Retention:
    layer = build("retention", WIDTH, heads=HEADS, rescale=rescale, norm_eps=eps).double()
    layer.load_state_dict(weights)
    assert isinstance(layer, Retention)
    return layer


def _apart(y: Tensor, right: Tensor) -> float:
    return ((y - right).abs().max() / right.abs().max()).item()
