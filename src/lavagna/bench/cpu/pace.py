"""Steps, and the reading of a prompt: ours and llama.cpp's in turn, beside what bounds them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from lavagna.bench.clock import Job, Timed, least
from lavagna.bench.cpu import gguf, peers
from lavagna.bench.cpu.llama import NUMBER, PACKAGE, of_llama_cpp
from lavagna.bench.cpu.logits import JUDGED, PROMPT, agreement
from lavagna.bench.cpu.row import Against, Row, Subject, Verdict, absent, measured, wrong
from lavagna.bench.floor import product, reading
from lavagna.generation.prefill import evaluating, prefill
from lavagna.generation.stepper import Stepper
from lavagna.models import LanguageModel
from lavagna.models.size import multiplied
from lavagna.modules.eight_bit import EightBit

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Of a peer's time for a step.
AHEAD = 1.0


class Case(NamedTuple):
    """A model of a layer in a dtype, the model that it is rounded from (itself but for 8 bits), and a prompt."""

    layer: str
    dtype: str
    model: LanguageModel
    exact: LanguageModel
    ids: Tensor

    def subject(self, what: str, by: str) -> Subject:
        """What a row is about."""
        return Subject("generation", self.layer, f"{what} {self.dtype}", by, torch.get_num_threads())


class How(NamedTuple):
    """Steps of a run, rounds, bytes that are read to find the machine's speed, and seconds of patience with a run."""

    tokens: int
    rounds: int
    nbytes: int
    patience: float


class _Entry(NamedTuple):
    """Who takes part: its steps, its reading of the prompt, the bytes of weights that a step reads, how right it is."""

    by: str
    steps: Job
    prompt: Job
    nbytes: float
    verdict: Verdict


def pace_rows(case: Case, verdict: Verdict, others: Sequence[str], how: How) -> Iterator[Row]:
    """Steps and a prompt against their floors, and ours against llama.cpp's where it has the layer."""
    model, ids = case.model, case.ids
    steps, prompt = stepping(model, ids[:, :PROMPT], how.tokens), partial(prefill, model, ids)
    entries = [_Entry("lavagna", steps, prompt, weight_bytes(model), verdict)]
    with ExitStack() as stack:
        if case.layer in gguf.KINDS and PACKAGE in others:
            theirs = _llama_cpp(stack, case, how.tokens)
            if isinstance(theirs, Row):
                yield theirs
            else:
                entries.append(theirs)
        read, work = reading(how.nbytes), product(DTYPES.get(case.dtype, torch.float32))
        jobs: dict[str, Job] = {"reading": read.job, "product": work.job}
        for each in entries:
            jobs |= {f"steps by {each.by}": each.steps, f"prompt by {each.by}": each.prompt}
        with evaluating(model):
            found = least(jobs, rounds=how.rounds, patience=how.patience)
    bandwidth, speed = (each.amount / found[name].seconds for name, each in (("reading", read), ("product", work)))
    times = [found[f"steps by {each.by}"] for each in entries]
    times = [Timed(run.seconds / how.tokens, run.runs * how.tokens) for run in times]
    floors = [Against(f"weights at {bandwidth / 1e9:.3g} GB/s", each.nbytes / bandwidth) for each in entries]
    yield from _beside(case, "step", 1, entries, times, floors, AHEAD)
    times = [found[f"prompt by {each.by}"] for each in entries]
    head = model.config.vocab_rows * model.config.d_model
    operations = 2 * (multiplied(model.config) - head) * ids.shape[1]
    floors = [Against(f"arithmetic at {speed / 1e9:.3g} GFLOP/s", operations / speed)] * len(entries)
    yield from _beside(case, f"prompt of {ids.shape[1]}", ids.shape[1], entries, times, floors, None)


def _llama_cpp(stack: ExitStack, case: Case, tokens: int) -> _Entry | Row:
    """llama.cpp with the same weights, which it rounds by itself, or the row that says why it takes no part."""
    subject = case.subject("step", PACKAGE)
    if (reason := peers.missing(PACKAGE)) is not None:
        return absent(subject, reason)
    theirs = stack.enter_context(of_llama_cpp(case.exact, case.dtype))
    text = case.ids[0].tolist()
    theirs.read(text[:PROMPT])
    for each in text[PROMPT : PROMPT + JUDGED]:
        theirs.append([each])
    verdict = agreement(case.model, theirs.logits[None], case.ids[:, : PROMPT + JUDGED], case.exact)
    if not verdict.right:
        return wrong(subject, verdict, "lavagna")
    tied, embedding = case.model.config.tie_embeddings, case.exact.embedding.weight
    nbytes = theirs.nbytes - (0 if tied else embedding.numel() * NUMBER[case.dtype])
    return _Entry(PACKAGE, partial(theirs.step, tokens), partial(theirs.read, text), nbytes, verdict)


def _beside(
    case: Case,
    what: str,
    tokens: int,
    entries: Sequence[_Entry],
    times: Sequence[Timed],
    floors: Sequence[Against],
    bound: float | None,
) -> Iterator[Row]:
    """Everyone against its floor, then ours against each other's time."""
    for (by, _, _, nbytes, verdict), time, floor in zip(entries, times, floors, strict=True):
        note = f"{_told(nbytes)} of weights"
        about = case.subject(what, by)
        yield measured(about, time, work=tokens, unit="tokens/s", against=floor, verdict=verdict, note=note)
    (by, *_, verdict), *rest = entries
    for each, time in zip(rest, times[1:], strict=True):
        against = Against(each.by, time.seconds, bound)
        yield measured(case.subject(what, by), times[0], work=tokens, unit="tokens/s", against=against, verdict=verdict)


def _told(nbytes: float) -> str:
    """So many bytes, to be read.

    >>> _told(500_400_000), _told(1_600_000), _told(52_000)
    ('500 MB', '2 MB', '52 KB')
    """
    return f"{nbytes / 1e6:,.0f} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.0f} KB"


def stepping(model: LanguageModel, ids: Tensor, tokens: int) -> Job:
    """So many steps, each by the likeliest id of the one before, after a text that was read before the clock starts."""
    with evaluating(model):
        stepper = Stepper(model, prefill(model, ids[:, :-1]), 1 << 20)
        last = ids[:, -1:]
        # The second step is captured.
        for _ in range(2):
            last = stepper(last)[:, -1].argmax(-1, keepdim=True)

    def run() -> None:
        nonlocal last
        for _ in range(tokens):
            last = stepper(last)[:, -1].argmax(-1, keepdim=True)

    return run


def weight_bytes(model: LanguageModel) -> int:
    """Bytes of the weights that each token reads: all but an embedding that is no head."""
    rounded = [part for part in model.modules() if isinstance(part, EightBit)]
    read = model.config.tie_embeddings and not rounded
    weights = [*model.parameters(), *(buffer for part in rounded for buffer in part.buffers())]
    return sum(weight.nbytes for weight in weights) - (0 if read else model.embedding.weight.nbytes)
