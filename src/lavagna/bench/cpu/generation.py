"""Generation by whole models, beside the bytes that a token must read, the arithmetic of a prompt, and peers."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lavagna.bench.clock import Job, Timed, least, threads
from lavagna.bench.cpu import peers
from lavagna.bench.cpu.row import Against, Row, Subject, Verdict, absent, measured, wrong
from lavagna.bench.floor import product, reading
from lavagna.checks.row import TOLERANCES, distance
from lavagna.generation import generate
from lavagna.generation.prefill import evaluating, prefill
from lavagna.generation.stepper import Stepper
from lavagna.models import LanguageModel, quantize
from lavagna.models.presets import nearest_depth
from lavagna.models.size import multiplied
from lavagna.modules.eight_bit import EightBit

SIZE, WIDTH, VOCABULARY = 125_000_000, 768, 32000
LAYERS = ("gated_delta_net", "mamba", "mamba2", "rwkv4", "rwkv7", "mlstm", "softmax_attention")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Weights of 8 bits, everything else in float32.
INT8 = "int8"
STRATEGIES = {"float32": "cpu fp32", "bfloat16": "cpu bf16"}
# Ids before the first step, and steps whose logits are held to the definition.
PROMPT, JUDGED = 16, 8
# Of what torch alone errs in the same dtype.
TIMES = 2.0


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
    others: Sequence[str] = ("transformers", "rwkv"),
) -> Iterator[Row]:
    """Tokens a second of steps and of a prompt, batch 1, on all threads, and of whole calls of `generate` by peers.

    A step is held against the bytes of the weights at the speed at which the machine reads, a prompt against 2
    operations a multiplied parameter and token (no head) at the speed of its product in the same dtype. Beside
    transformers a layer is built as it is there, which may mean attention in some blocks, whose steps are not captured;
    each peer has the same weights, and is called as its own documentation says. Logits of some steps are first held to
    the model in float64: off by at most twice what torch's own steps are in the same dtype.
    """
    with threads(torch.get_num_threads()), torch.no_grad():
        for layer in layers or LAYERS:
            twin = "transformers" in others and layer in peers.TWINS
            config = partial(peers.configuration, layer, d_model=d_model, vocab_size=vocab_size, twin=twin)
            pattern = len(peers.TWINS[layer].layer) if twin and not isinstance(peers.TWINS[layer].layer, str) else 1
            depth = nearest_depth(config, size, pattern)
            if layer in peers.RWKV and "rwkv" in others:
                # Its files have a head of their own.
                config = partial(untied, config)
            exact = peers.stirred(config(depth))
            ids = torch.randint(vocab_size, (1, prompt), generator=torch.Generator().manual_seed(0))
            for dtype in dtypes:
                if dtype == INT8 and (reason := peers.missing("torchao")) is not None:
                    yield absent(_subject(layer, f"step {dtype}", "lavagna"), reason)
                    continue
                model = quantize(exact) if dtype == INT8 else copy.deepcopy(exact).to(DTYPES[dtype])
                verdict = judged(model, ids)
                if verdict.right:
                    yield from _own(layer, dtype, model, ids, verdict, (tokens, rounds, nbytes, patience))
                    if dtype in DTYPES:
                        yield from _beside(layer, dtype, model, ids[:, :PROMPT], (tokens, rounds, patience), others)
                else:
                    yield wrong(_subject(layer, f"step {dtype}", "lavagna"), verdict, "itself in float64")


def untied(config: Callable[[int], Any], depth: int) -> Any:
    """The configuration of a depth with a head of its own."""
    from dataclasses import replace

    return replace(config(depth), tie_embeddings=False)


def _subject(layer: str, what: str, by: str) -> Subject:
    return Subject("generation", layer, what, by, torch.get_num_threads())


def judged(model: LanguageModel, ids: Tensor) -> Verdict:
    """Logits of steps as generation takes them, against the same weights in float64, a token at a time by torch."""
    ids = ids[:, : PROMPT + JUDGED]
    wanted = _steps(_plain(copy.deepcopy(model).double()), ids)
    own = distance([_steps(_plain(model), ids)], [wanted])
    with evaluating(model):
        stepper = Stepper(model, prefill(model, ids[:, :PROMPT]), 1 << 10)
        came = torch.cat([stepper(ids[:, t : t + 1]).clone() for t in range(PROMPT, ids.shape[1])], 1)
    tolerance = max(TIMES * own, TOLERANCES["output", torch.float32])
    return Verdict(distance([came], [wanted[:, PROMPT:]]), tolerance)


def _plain(model: LanguageModel) -> Callable[[Tensor, Any], tuple[Tensor, Any]]:
    return lambda ids, state: model(ids, state, form="auto", backend="torch")


def _steps(call: Callable[[Tensor, Any], tuple[Tensor, Any]], ids: Tensor) -> Tensor:
    state, logits = None, []
    for t in range(ids.shape[1]):
        some, state = call(ids[:, t : t + 1], state)
        logits.append(some)
    return torch.cat(logits, 1)


def _own(
    layer: str, dtype: str, model: LanguageModel, ids: Tensor, verdict: Verdict, how: tuple[int, int, int, float]
) -> Iterator[Row]:
    """Steps and a prompt, against their floors."""
    tokens, rounds, nbytes, patience = how
    read, work = reading(nbytes), product(DTYPES.get(dtype, torch.float32))
    jobs: dict[str, Job] = {
        "reading": read.job,
        "product": work.job,
        "step": stepping(model, ids[:, :PROMPT], tokens),
        "prompt": partial(prefill, model, ids),
    }
    with evaluating(model):
        found = least(jobs, rounds=rounds, patience=patience)
    bandwidth, speed = (each.amount / found[name].seconds for name, each in (("reading", read), ("product", work)))
    weights = weight_bytes(model)
    note = f"{weights / 1e6:.0f} MB a token"
    step = Timed(found["step"].seconds / tokens, found["step"].runs * tokens)
    against = Against(f"weights at {bandwidth / 1e9:.3g} GB/s", weights / bandwidth)
    subject = _subject(layer, f"step {dtype}", "lavagna")
    yield measured(subject, step, work=1, unit="tokens/s", against=against, verdict=verdict, note=note)
    head = model.config.vocab_rows * model.config.d_model
    operations = 2 * (multiplied(model.config) - head) * ids.shape[1]
    against = Against(f"arithmetic at {speed / 1e9:.3g} GFLOP/s", operations / speed)
    subject = _subject(layer, f"prompt of {ids.shape[1]} {dtype}", "lavagna")
    yield measured(subject, found["prompt"], work=ids.shape[1], unit="tokens/s", against=against, verdict=verdict)


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


def _beside(
    layer: str, dtype: str, model: LanguageModel, ids: Tensor, how: tuple[int, int, float], others: Sequence[str]
) -> Iterator[Row]:
    """Whole calls: a short prompt, and the likeliest ids after it."""
    tokens, rounds, patience = how
    what = f"generate {tokens} {dtype}"
    jobs: dict[str, Job] = {"lavagna": partial(generate, model, ids, max_new_tokens=tokens, temperature=0)}
    verdicts: dict[str, Verdict] = {}
    with ExitStack() as stack:
        for by, has in (("transformers", layer in peers.TWINS), ("rwkv", layer in peers.RWKV)):
            if not has or by not in others:
                continue
            subject, reason = _subject(layer, what, by), peers.missing(by)
            if reason is None:
                logits, call = _PEERS[by](stack, layer, dtype, model, ids, tokens)
                verdicts[by] = _agreement(model, logits, ids)
                # Once here, so that what fails is told of and the rest goes on.
                reason = peers.failure(call) if verdicts[by].right else None
            if reason is not None:
                yield absent(subject, reason)
            elif verdicts[by].right:
                jobs[by] = call
            else:
                yield wrong(subject, verdicts[by], "lavagna")
        found = least(jobs, rounds=rounds, patience=patience)
    for by, time in found.items():
        against = Against("lavagna", found["lavagna"].seconds) if by != "lavagna" else None
        subject = _subject(layer, what, by)
        yield measured(subject, time, work=tokens, unit="tokens/s", against=against, verdict=verdicts.get(by))


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


def _agreement(model: LanguageModel, logits: Tensor, ids: Tensor) -> Verdict:
    """A peer's last logits of a text, in its dtype, against the model's in float64; torch's own error says how near."""
    wanted = _plain(copy.deepcopy(model).double())(ids, None)[0][:, -1]
    own = distance([_plain(model)(ids, None)[0][:, -1]], [wanted])
    # Another order of roundings may be some times worse, and is not judged here but by its result.
    return Verdict(distance([logits], [wanted]), max(10 * own, 1e-3))
