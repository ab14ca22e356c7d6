"""Generation by whole models, beside the bytes that a token must read, the arithmetic of a prompt, and peers."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lavagna.bench.clock import Job, least, threads
from lavagna.bench.cpu import peers
from lavagna.bench.cpu.llama import PACKAGE
from lavagna.bench.cpu.logits import PROMPT, agreement, judged
from lavagna.bench.cpu.pace import DTYPES, Case, How, pace_rows
from lavagna.bench.cpu.row import Against, Row, Verdict, absent, measured, wrong
from lavagna.generation import generate
from lavagna.models import LanguageModel, quantize
from lavagna.models.presets import nearest_depth

SIZE, WIDTH, VOCABULARY = 125_000_000, 768, 32000
LAYERS = ("gated_delta_net", "mamba", "mamba2", "rwkv4", "rwkv7", "mlstm", "softmax_attention")
OTHERS = ("transformers", "rwkv", PACKAGE)
# Weights of 8 bits, everything else in float32.
INT8 = "int8"
STRATEGIES = {"float32": "cpu fp32", "bfloat16": "cpu bf16"}


def generation_rows(
    layers: Sequence[str] | None = None,
    *,
    d_model: int = WIDTH,
    vocab_size: int = VOCABULARY,
    size: int = SIZE,
    tokens: int = 64,
    prompt: int = 512,
    dtypes: Sequence[str] = (*DTYPES, INT8),
    rounds: int = 3,
    nbytes: int = 1 << 29,
    patience: float = 20.0,
    others: Sequence[str] = OTHERS,
) -> Iterator[Row]:
    """Tokens a second of steps and of a prompt, batch 1, on all threads, and of whole calls of `generate` by peers.

    A step is held against the bytes of the weights at the speed at which the machine reads, a prompt against 2
    operations a multiplied parameter and token (no head) at the speed of its product in the same dtype. Beside
    transformers a layer is built as it is there, which may mean attention in some blocks; each peer has the same
    weights, and is called as its own documentation says. Logits of some steps are first held to the model in float64:
    off by at most twice what torch's own steps are in the same dtype.
    """
    with threads(torch.get_num_threads()), torch.no_grad():
        for layer in layers or LAYERS:
            twin = "transformers" in others and layer in peers.TWINS
            config = partial(peers.configuration, layer, d_model=d_model, vocab_size=vocab_size, twin=twin)
            pattern = len(peers.TWINS[layer].layer) if twin and not isinstance(peers.TWINS[layer].layer, str) else 1
            depth = nearest_depth(config, size, pattern)
            if layer in peers.RWKV and {"rwkv", PACKAGE} & {*others}:
                # Their files have a head of their own.
                config = partial(untied, config)
            exact = peers.stirred(config(depth))
            ids = torch.randint(vocab_size, (1, prompt), generator=torch.Generator().manual_seed(0))
            for dtype in dtypes:
                if dtype == INT8 and (reason := peers.missing("torchao")) is not None:
                    yield absent(Case(layer, dtype, exact, exact, ids).subject("step", "lavagna"), reason)
                    continue
                model = quantize(exact) if dtype == INT8 else copy.deepcopy(exact).to(DTYPES[dtype])
                case = Case(layer, dtype, model, exact if dtype == INT8 else model, ids)
                verdict = judged(model, ids)
                if verdict.right:
                    yield from pace_rows(case, verdict, others, How(tokens, rounds, nbytes, patience))
                    if dtype in DTYPES:
                        yield from _beside(case, others, tokens, rounds, patience)
                else:
                    yield wrong(case.subject("step", "lavagna"), verdict, "itself in float64")


def untied(config: Callable[[int], Any], depth: int) -> Any:
    """The configuration of a depth with a head of its own."""
    return replace(config(depth), tie_embeddings=False)


def _beside(case: Case, others: Sequence[str], tokens: int, rounds: int, patience: float) -> Iterator[Row]:
    """Whole calls: a short prompt, and the likeliest ids after it."""
    model, ids = case.model, case.ids[:, :PROMPT]
    subject = partial(case.subject, f"generate {tokens}")
    jobs: dict[str, Job] = {"lavagna": partial(generate, model, ids, max_new_tokens=tokens, temperature=0)}
    verdicts: dict[str, Verdict] = {}
    with ExitStack() as stack:
        for by, has in (("transformers", case.layer in peers.TWINS), ("rwkv", case.layer in peers.RWKV)):
            if not has or by not in others:
                continue
            reason = peers.missing(by)
            if reason is None:
                logits, call = _PEERS[by](stack, case.layer, case.dtype, model, ids, tokens)
                verdicts[by] = agreement(model, logits, ids)
                # Once here, so that what fails is told of and the rest goes on.
                reason = peers.failure(call) if verdicts[by].right else None
            if reason is not None:
                yield absent(subject(by), reason)
            elif verdicts[by].right:
                jobs[by] = call
            else:
                yield wrong(subject(by), verdicts[by], "lavagna")
        found = least(jobs, rounds=rounds, patience=patience)
    for by, time in found.items():
        against = Against("lavagna", found["lavagna"].seconds) if by != "lavagna" else None
        yield measured(subject(by), time, work=tokens, unit="tokens/s", against=against, verdict=verdicts.get(by))


def _transformers(
    stack: ExitStack, layer: str, dtype: str, model: LanguageModel, ids: Tensor, tokens: int
) -> tuple[Tensor, Job]:
    """A peer's last logits of a text (1, rows), and its generation as a job."""
    theirs = stack.enter_context(peers.of_transformers(model, layer))
    options = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    return peers.logits(theirs, ids)[:, -1], partial(
        theirs.generate, ids, attention_mask=torch.ones_like(ids), **options
    )


def _rwkv(
    stack: ExitStack, layer: str, dtype: str, model: LanguageModel, ids: Tensor, tokens: int
) -> tuple[Tensor, Job]:
    theirs = stack.enter_context(peers.of_rwkv(model, layer, STRATEGIES[dtype]))

    def run() -> None:
        logits, state = theirs.forward(ids[0].tolist(), None)
        for _ in range(tokens):
            logits, state = theirs.forward([int(logits.argmax())], state)

    return theirs.forward(ids[0].tolist(), None)[0][None], run


_PEERS = {"transformers": _transformers, "rwkv": _rwkv}
