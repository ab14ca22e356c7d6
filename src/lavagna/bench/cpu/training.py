"""A forward and backward pass of whole models, beside the arithmetic they can't do without, attention, and peers."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lavagna.bench.clock import Job, least, threads
from lavagna.bench.cpu import peers
from lavagna.bench.cpu.row import Against, Row, Subject, Verdict, absent, measured, wrong
from lavagna.bench.cpu.spent import spent
from lavagna.bench.floor import product
from lavagna.checks.row import distance
from lavagna.layers import names
from lavagna.models import LanguageModel
from lavagna.models.presets import nearest_depth
from lavagna.models.size import multiplied, parameters

SIZE, WIDTH, VOCABULARY = 25_000_000, 384, 8192
BASELINE = "softmax_attention"
OTHERS = ("transformers", "mambapy")
# Of the time that the products alone would take, or of the baseline's share of that: one of the two is wanted.
OF_FLOOR, OF_BASELINE = 0.6, 0.9
# What is bound by something else than products: reported, with what its time is spent in.
OTHERWISE = ("slstm", "lssl", "s4", "dss", "s5", "h3", "hyena", "mamba3", BASELINE, "lstm")
# How many times as fast as transformers.
WANTED = {"mamba": 50, "mamba2": 50, "rwkv4": 4, "gated_delta_net": 1.2}
# Largest difference of logits over the largest logit, and the gradient's distance over its length.
LOGITS, GRADIENT = 1e-3, 1e-3


class _Entry(NamedTuple):
    """A model that takes part: whose, what says its logits, and its parameters."""

    by: str
    model: nn.Module
    logits: Callable[[Tensor], Tensor]


def training_rows(
    layers: Sequence[str] | None = None,
    *,
    d_model: int = WIDTH,
    vocab_size: int = VOCABULARY,
    size: int = SIZE,
    tokens: int = 512,
    rounds: int = 3,
    patience: float = 20.0,
    others: Sequence[str] = OTHERS,
) -> Iterator[Row]:
    """Tokens a second of forward, loss and backward, without an optimizer, b 1, float32, on all threads.

    Each layer as a model of about `size` parameters, held against 6 operations a multiplied parameter and token at the
    speed of the machine's product, and against softmax attention's time for its own. A layer that transformers has is
    measured once more as it is there, with the same weights. Before anything is timed its logits and the whole gradient
    are held to the model's own in float64 by torch alone; the peer's logits to ours. What takes more than `patience`
    seconds runs once.
    """
    sizes = {"d_model": d_model, "vocab_size": vocab_size}
    baseline = _model(BASELINE, size, twin=False, **sizes)
    ids = torch.randint(vocab_size, (1, tokens + 1), generator=torch.Generator().manual_seed(0))
    with threads(torch.get_num_threads()):
        for layer in layers or names():
            model = _model(layer, size, twin=False, **sizes)
            yield from _alone(layer, model, baseline, ids, rounds, patience)
            if layer in peers.TWINS and others:
                model = _model(layer, size, twin=True, **sizes)
                yield from _beside(layer, model, ids, rounds, patience, others)


def _model(layer: str, size: int, *, twin: bool, d_model: int, vocab_size: int) -> LanguageModel:
    config = partial(peers.configuration, layer, d_model=d_model, vocab_size=vocab_size, twin=twin)
    pattern = len(peers.TWINS[layer].layer) if twin and not isinstance(peers.TWINS[layer].layer, str) else 1
    depth = nearest_depth(config, size, pattern)
    return peers.stirred(config(depth)).train()


def _alone(
    layer: str, model: LanguageModel, baseline: LanguageModel, ids: Tensor, rounds: int, patience: float
) -> Iterator[Row]:
    subject = _subject(layer, "lavagna")
    verdict = judged(model, ids)
    if not verdict.right:
        yield wrong(subject, verdict, "itself in float64 by torch")
        return
    work, tokens = product(), ids.shape[1] - 1
    jobs: dict[str, Job] = {"product": work.job, BASELINE: job(ours(baseline), ids), "layer": job(ours(model), ids)}
    found = least(jobs, rounds=rounds, patience=patience)
    speed = work.amount / found["product"].seconds
    floors = {name: 6 * multiplied(one) * tokens / speed for name, one in ((layer, model), (BASELINE, baseline))}
    share, shared = floors[layer] / found["layer"].seconds, floors[BASELINE] / found[BASELINE].seconds
    asked = layer not in OTHERWISE
    against = Against("arithmetic", floors[layer], 1 / OF_FLOOR if asked else None)
    note = f"{parameters(model) / 1e6:.1f}M; {spent(jobs['layer'])}"
    row = measured(subject, found["layer"], work=tokens, unit="tokens/s", against=against, verdict=verdict, note=note)
    # One of the two is enough.
    yield row._replace(holds=row.holds or share >= OF_BASELINE * shared) if asked else row
    other = Against(f"{BASELINE}'s share", found["layer"].seconds * share / shared, 1 / OF_BASELINE if asked else None)
    yield measured(subject, found["layer"], work=tokens, unit="tokens/s", against=other, verdict=verdict)


def _beside(
    layer: str, model: LanguageModel, ids: Tensor, rounds: int, patience: float, others: Sequence[str]
) -> Iterator[Row]:
    """The model as transformers has it, by both."""
    tokens, whole = ids.shape[1] - 1, f"{layer} as {peers.TWINS[layer].format}"
    if (reason := peers.missing("transformers")) is not None or "transformers" not in others:
        yield absent(_subject(whole, "transformers"), reason or "left out")
        return
    verdict = judged(model, ids)
    if not verdict.right:
        yield wrong(_subject(whole, "lavagna"), verdict, "itself in float64 by torch")
        return
    with ExitStack() as stack:
        entries = [("transformers", stack.enter_context(peers.of_transformers(model, layer)))]
        if layer == "mamba" and "mambapy" in others and peers.missing("mambapy") is None:
            by = "transformers by mambapy"
            entries.append((by, stack.enter_context(peers.of_transformers(model, layer, use_mambapy=True))))
        jobs: dict[str, Job] = {"lavagna": job(ours(model), ids)}
        verdicts = {"lavagna": verdict}
        for by, theirs in entries:
            verdicts[by] = agreement(model, theirs, ids)
            if not verdicts[by].right:
                yield wrong(_subject(whole, by), verdicts[by], "lavagna")
                continue
            theirs.train()
            jobs[by] = job(_Entry(by, theirs, partial(peers.logits, theirs)), ids)
        found = least(jobs, rounds=rounds, patience=patience)
    for by in jobs:
        against = None if by == "lavagna" else Against("lavagna", found["lavagna"].seconds)
        yield measured(
            _subject(whole, by), found[by], work=tokens, unit="tokens/s", against=against, verdict=verdicts[by]
        )
    if "transformers" in jobs:
        faster = Against("transformers", found["transformers"].seconds, 1 / WANTED[layer] if layer in WANTED else None)
        yield measured(
            _subject(whole, "lavagna"), found["lavagna"], work=tokens, unit="tokens/s", against=faster, verdict=verdict
        )


def _subject(name: str, by: str) -> Subject:
    return Subject("training", name, "with backward", by, torch.get_num_threads())


def ours(model: LanguageModel, backend: str = "auto") -> _Entry:
    """A model of ours as it takes part."""
    return _Entry("lavagna", model, lambda ids: model(ids, backend=backend).logits)


def job(entry: _Entry, ids: Tensor) -> Job:
    """Forward, loss and backward."""

    def run() -> None:
        gradient_of(entry, ids)
        entry.model.zero_grad(set_to_none=True)

    return run


def gradient_of(entry: _Entry, ids: Tensor) -> Tensor:
    """The logits of a text, every parameter's gradient of the mean loss of its next ids being added to it."""
    logits = entry.logits(ids[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
    return logits.detach()


def judged(model: LanguageModel, ids: Tensor) -> Verdict:
    """A model's logits and its gradient as one vector, against those of torch's forms in float64; the worse of both.

    `lavagna check` holds those forms to the definition. Blocks are computed again in the backward pass, for memory.
    """
    exact = copy.deepcopy(model).double()
    exact.checkpointing = True
    wanted = gradient_of(ours(exact, "torch"), ids)
    came = gradient_of(ours(model), ids)
    off = length = 0.0
    for one, other in zip(model.parameters(), exact.parameters(), strict=True):
        if other.grad is not None:
            assert one.grad is not None
            off += (one.grad.double() - other.grad).square().sum().item()
            length += other.grad.square().sum().item()
    model.zero_grad(set_to_none=True)
    return Verdict(max(distance([came], [wanted]) / LOGITS, (off / length) ** 0.5 / GRADIENT) * LOGITS, LOGITS)


def agreement(model: LanguageModel, theirs: nn.Module, ids: Tensor) -> Verdict:
    """A peer's logits against ours."""
    with torch.no_grad():
        return Verdict(distance([peers.logits(theirs, ids[:, :-1])], [model(ids[:, :-1]).logits]), LOGITS)
